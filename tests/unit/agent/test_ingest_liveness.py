"""An ingest worker's messages of life while its disk does not answer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.liveness import stay_alive
from flumeng.agent.ingest.worker import Worker
from flumeng.agent.node.protocol import Message
from flumeng.journal.log.disk import TimedDisk
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import PATIENCE_SECONDS, async_wait_for


class HangingDisk(TimedDisk):
    """A sync returns when ``answers`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def sync(self, fd: int) -> None:
        self.answers.wait(PATIENCE_SECONDS)
        super().sync(fd)


def configure(log: Path, durability: str) -> Message:
    spec = (
        f'flow: f\nsources:\n  - tail: {{paths: ["{log}"], poll_seconds: 0.01}}\n'
        f"durability: {durability}\nsinks:\n  - noop\n"
    )
    task = {"flow": "f", "task": "0", "epoch": 1, "revision": 1, "spec": spec}
    return {"type": "configure", "number": 1, "tasks": [task]}


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["disk", "spill"])
def test_hanging_sync_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """The event loop turns all the while, and so ``alive`` alone would mean that all is well. A
    journal of durability spill, which does not wait for its disk otherwise, reports it as well."""
    monkeypatch.setattr("flumeng.journal.log.segment_writer.OVERDUE_SECONDS", 0.5)
    log = tmp_path / "app.log"
    said: list[Message] = []
    soon: list[Message] = []
    store, disk = JournalStore(tmp_path / "data", "here"), HangingDisk()
    store.disk = disk

    async def follow() -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        running = asyncio.create_task(Worker(store, ("127.0.0.1", 0), said.append).run(messages))
        impatient = asyncio.create_task(stay_alive(soon.append, 0.05, held_seconds=0.5))
        messages.put_nowait(configure(log, durability))
        await async_wait_for(lambda: store.journals)
        (journal,) = store.journals
        log.write_text("one\n")
        await async_wait_for(lambda: store.journals[journal].safe == 1)
        assert {"type": "alive"} in said
        assert not any(message.get("held") for message in soon)
        disk.answers.clear()
        log.write_text("one\ntwo\n")
        held = {"type": "alive", "held": f"disk: journal {journal}"}
        await async_wait_for(lambda: held in soon)
        disk.answers.set()
        await async_wait_for(lambda: soon[-1] == {"type": "alive"})
        impatient.cancel()
        messages.put_nowait({"type": "stop"})
        await asyncio.wait_for(running, PATIENCE_SECONDS)
        assert store.journals[journal].safe == 2

    asyncio.run(follow())


def test_status_of_a_worker_waits_for_no_disk(tmp_path: Path) -> None:
    """The event loop needs it: a thread that waits for the disk with the store's lock held would
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
