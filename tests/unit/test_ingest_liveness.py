"""What an ingest worker says of itself while its disk does not answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flumeng.agent.ingest import liveness
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.worker import Worker
from flumeng.agent.node.protocol import Message
from flumeng.journal.log.disk import TimedDisk
from tests.testkit.journal import numbered_events

PATIENCE_SECONDS = 60.0


class HangingDisk(TimedDisk):
    """A sync returns when ``answers`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def sync(self, fd: int) -> None:
        self.answers.wait(PATIENCE_SECONDS)
        super().sync(fd)


async def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.01)


def configure(log: Path, durability: str) -> Message:
    spec = (
        f'flow: f\nsources:\n  - tail: {{paths: ["{log}"], poll_seconds: 0.01}}\n'
        f"durability: {durability}\nsinks:\n  - noop\n"
    )
    task = {"flow": "f", "task": "0", "epoch": 1, "revision": 1, "spec": spec}
    return {"type": "configure", "number": 1, "tasks": [task]}


@pytest.mark.parametrize("durability", ["disk", "spill"])
def test_a_sync_that_does_not_return_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """The event loop turns all the while, and so ``alive`` alone would say that all is well. A
    journal of durability spill, which does not wait for its disk otherwise, does so as well."""
    monkeypatch.setattr(liveness, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(liveness, "HELD_SECONDS", 0.5)
    monkeypatch.setattr("flumeng.journal.log.segment_writer.OVERDUE_SECONDS", 0.5)
    log = tmp_path / "app.log"
    said: list[Message] = []
    store, disk = JournalStore(tmp_path / "data", "here"), HangingDisk()
    store.disk = disk

    async def follow() -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        running = asyncio.create_task(Worker(store, ("127.0.0.1", 0), said.append).run(messages))
        messages.put_nowait(configure(log, durability))
        await eventually(lambda: store.journals)
        (journal,) = store.journals
        log.write_text("one\n")
        await eventually(lambda: store.journals[journal].safe == 1)
        assert not any(message.get("held") for message in said)
        disk.answers.clear()
        log.write_text("one\ntwo\n")
        held = {"type": "alive", "held": f"disk: journal {journal}"}
        await eventually(lambda: held in said)
        disk.answers.set()
        await eventually(lambda: said[-1] == {"type": "alive"})
        messages.put_nowait({"type": "stop"})
        await asyncio.wait_for(running, PATIENCE_SECONDS)
        assert store.journals[journal].safe == 2

    asyncio.run(follow())


def test_what_is_said_of_a_worker_waits_for_no_disk(tmp_path: Path) -> None:
    """The event loop asks for it: a thread that waits for the disk with the store's lock held would
    make a worker with a slow disk look like one that hangs."""
    store, disk = JournalStore(tmp_path, "here"), HangingDisk()
    store.disk = disk
    journal = store.take("f")
    journal.append(numbered_events(0, 1))
    store.give_back(journal)
    disk.answers.clear()
    closing = threading.Thread(target=store.close_all_but, args=(frozenset(),), daemon=True)
    closing.start()
    asked = threading.Thread(target=store.sources.flows, daemon=True)
    asked.start()
    asked.join(5.0)
    answered, waits = not asked.is_alive(), closing.is_alive()
    disk.answers.set()
    closing.join(PATIENCE_SECONDS)
    store.close()
    assert waits, "the disk held nobody up: this test shows nothing"
    assert answered
