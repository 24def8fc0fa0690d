"""One flow over a journal on a disk that fails, fills up and is damaged."""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.ingest import source_runner
from flumeng.agent.ingest.batch import NO_EVENTS
from flumeng.agent.ingest.flow import FlowRunner
from flumeng.agent.ingest.journal_appender import PENDING_BYTES, JournalAppender
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.node.protocol import Assignment
from flumeng.connectors.api.counters import Counters
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.tail.tailer import Tailer
from flumeng.events.journal_names import flow_of
from flumeng.journal.log.journal import Journal
from flumeng.platform.errors import CorruptError, UserError
from tests.testkit.journal import TroubledDisk
from tests.testkit.logs import tracebacks
from tests.testkit.waiting import PATIENCE_SECONDS, async_wait_for


def tail_task(log: Path, revision: int = 1, epoch: int = 1) -> Assignment:
    spec = (
        f'flow: f\nsources:\n  - tail: {{paths: ["{log}"], poll_seconds: 0.01}}\nsinks:\n  - noop\n'
    )
    return Assignment("f", "0", epoch, revision, spec)


class Running:
    """A flow that tails one log."""

    def __init__(self, tmp_path: Path) -> None:
        self.log = tmp_path / "app.log"
        self.written: list[str] = []
        self.journal_store = JournalStore(tmp_path, "here")
        self.disk = self.journal_store.disk = TroubledDisk()
        self.flow = self.run()

    def run(self) -> FlowRunner:
        task = tail_task(self.log)
        return FlowRunner(task, self.journal_store, "here", lambda: None, retry_seconds=0.05)

    def write(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        self.written += lines

    def safe_lines(self) -> list[str]:
        lines: list[str] = []
        for journal in self.journal_store.journals.values():
            assert isinstance(journal, Journal)
            for rows in journal.read(journal.floor, journal.safe):
                lines += [body.as_py().decode() for body in rows.column("body")]
        return lines

    async def all_safe(self) -> None:
        await async_wait_for(lambda: len(self.safe_lines()) >= len(self.written))
        assert self.safe_lines() == self.written

    async def status(self, state: str) -> dict[str, Any]:
        await async_wait_for(lambda: self.flow.status.get("f/0", {}).get("state") == state)
        return self.flow.status["f/0"]

    async def end(self) -> None:
        self.flow.want(None)
        await asyncio.wait_for(self.flow.finished, PATIENCE_SECONDS)
        self.journal_store.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_failed_sync_fails_the_flow_and_reopening_repairs_it(tmp_path: Path) -> None:
    """Events in doubt are read again from the file, and nothing is there twice."""

    async def test() -> None:
        running = Running(tmp_path)

        def fail_once() -> None:
            running.disk.heal()
            raise OSError(errno.EIO, "Input/output error")

        running.write("1", "2")
        await running.all_safe()
        (journal,) = running.journal_store.journals.values()
        running.disk.before_sync = fail_once
        running.write("3")
        status = await running.status("failed")
        assert "Input/output error" in status["error"]
        await running.status("running")
        running.write("4")
        await running.all_safe()
        (reopened,) = running.journal_store.journals.values()
        assert reopened.id == journal.id
        assert reopened.term > journal.term
        await running.end()

    run(test)


def test_ack_that_a_failing_journal_missed_is_kept(tmp_path: Path) -> None:
    async def test() -> None:
        running = Running(tmp_path)
        running.write("1", "2")
        await running.all_safe()
        (journal,) = running.journal_store.journals.values()

        def acked_and_failed() -> None:
            running.disk.heal()
            assert running.flow.trim(journal.id, 2)
            raise OSError(errno.EIO, "Input/output error")

        running.disk.before_sync = acked_and_failed
        running.write("3")
        await running.status("failed")
        await running.status("running")
        (reopened,) = running.journal_store.journals.values()
        assert reopened.acked == 2
        assert reopened.term > journal.term
        await running.end()

    run(test)


@pytest.mark.slow
def test_changed_source_continues_behind_the_lines_of_the_old_one(tmp_path: Path) -> None:
    """Also when these are not durable yet, on a slow disk."""

    async def test() -> None:
        running = Running(tmp_path)
        running.write("1")
        await running.all_safe()
        running.disk.before_sync = lambda: time.sleep(0.1)
        for line in ("2", "3"):
            running.write(line)
            await asyncio.sleep(0.04)
        task = tail_task(running.log, revision=2)
        running.flow.want(Assignment("f", "0", 1, 2, task.spec.replace("0.01", "0.02")))
        await async_wait_for(lambda: running.flow.status.get("f/0", {}).get("revision") == 2)
        running.write("4")
        await running.all_safe()
        await running.end()

    run(test)


@pytest.mark.slow
def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    """It is no failure: the flow goes on when there is room, and can be stopped before."""

    async def test() -> None:
        running = Running(tmp_path)
        running.write("1")
        await running.all_safe()
        running.disk.full = True
        running.write("2")
        await asyncio.sleep(0.1)
        assert running.safe_lines() == ["1"]
        assert (await running.status("running"))["error"] is None
        running.disk.full = False
        await running.all_safe()
        running.disk.full = True
        running.write("3")
        await asyncio.sleep(0.1)
        await running.end()
        again = Running(tmp_path)
        again.written = running.written
        await again.all_safe()
        await again.end()

    run(test)


@pytest.mark.slow
def test_failed_source_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tailer.poll
    broken = {"now": False}

    def poll(self: Tailer, now: float) -> list[ReceivedBlock]:
        blocks = real(self, now)
        if broken["now"]:
            raise OSError(errno.EIO, "Input/output error")
        return blocks

    monkeypatch.setattr(Tailer, "poll", poll)

    async def test() -> None:
        running = Running(tmp_path)
        running.write("1")
        await running.all_safe()
        broken["now"] = True
        running.write("2")
        assert "Input/output error" in (await running.status("failed"))["error"]
        broken["now"] = False
        await running.status("running")
        await running.all_safe()
        await running.end()

    run(test)


def test_source_that_fails_after_each_start_is_logged_once_and_so_is_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(source_runner, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(source_runner, "RETRY_MOST_SECONDS", 0.05)
    real, polls = Tailer.poll, count()

    def poll(self: Tailer, now: float) -> list[ReceivedBlock]:
        if next(polls) < 6:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, now)

    monkeypatch.setattr(Tailer, "poll", poll)

    async def test() -> None:
        running = Running(tmp_path)
        running.write("1")
        await running.all_safe()
        await async_wait_for(lambda: " works again" in caplog.text)
        await running.end()

    run(test)
    assert caplog.text.count(" fails, retrying: ") == 1
    assert tracebacks(caplog) == 0


@pytest.mark.slow
def test_new_source_reads_nothing_under_back_pressure(tmp_path: Path) -> None:
    async def test() -> None:
        running = Running(tmp_path)
        running.write("1")
        await running.all_safe()
        running.flow._on_pressure(True)
        await asyncio.sleep(0.05)
        running.write("2")
        task = tail_task(running.log, revision=2)
        running.flow.want(Assignment("f", "0", 1, 2, task.spec.replace("0.01", "0.02")))
        await asyncio.sleep(0.3)
        assert running.safe_lines() == ["1"]
        running.flow._on_pressure(False)
        await running.all_safe()
        await running.end()

    run(test)


def test_back_pressure_begins_before_submit_returns(tmp_path: Path) -> None:
    """The event loop would read a connection 32 more times before it sees a scheduled callback."""

    async def test() -> None:
        journal_store = JournalStore(tmp_path, "n")
        pressure: list[bool] = []
        appender = JournalAppender(journal_store.take("f"), pressure.append, lambda _: None)
        rules = LineRules(1 << 20, b"\r", keep_empty=False)
        line = b"x" * 999 + b"\n"
        block = ReceivedBlock(line * (PENDING_BYTES // len(line) + 1), Origin("", (), rules), 0)
        appender.submit(block, Counters())
        assert pressure == [True]
        await appender.drain(PATIENCE_SECONDS)
        await async_wait_for(lambda: pressure == [True, False])
        await appender.stop()
        journal_store.close()

    run(test)


def test_a_new_text_with_the_same_sources_does_not_touch_them(tmp_path: Path) -> None:
    async def test() -> None:
        running = Running(tmp_path)
        await running.status("running")
        sources = list(running.flow._sources)
        task = tail_task(running.log, revision=2)
        running.flow.want(Assignment("f", "0", 1, 2, task.spec.replace("noop", "console")))
        await async_wait_for(lambda: running.flow.status["f/0"]["revision"] == 2)
        assert running.flow._sources == sources
        assert len(running.journal_store.journals) == 1
        await running.end()

    run(test)


def test_new_epoch_restarts_the_sources_and_loses_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        running = Running(tmp_path)
        running.write("1", "2")
        await running.all_safe()
        sources = list(running.flow._sources)
        running.flow.want(tail_task(running.log, epoch=5))
        await async_wait_for(lambda: running.flow.status.get("f/0", {}).get("epoch") == 5)
        assert not {*map(id, sources)} & {*map(id, running.flow._sources)}
        running.write("3")
        await running.all_safe()
        assert len(running.journal_store.journals) == 1
        await running.end()

    run(test)


def test_flow_wanted_again_before_it_has_stopped_continues(tmp_path: Path) -> None:
    async def test() -> None:
        running = Running(tmp_path)
        await running.status("running")
        running.flow.want(None)
        running.flow.want(tail_task(running.log, epoch=2))
        running.write("1")
        await running.all_safe()
        await running.end()

    run(test)


@pytest.mark.slow
def test_invalid_text_fails_the_task_and_keeps_its_sources_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def test() -> None:
        running = Running(tmp_path)
        await running.status("running")
        running.flow.want(Assignment("f", "0", 1, 2, "flow: f\n"))
        status = await running.status("failed")
        await asyncio.sleep(0.3)
        assert (status["revision"], "sources" in status["error"]) == (2, True)
        running.write("1")
        await running.all_safe()
        running.flow.want(tail_task(running.log, revision=3))
        await running.status("running")
        await running.end()

    run(test)
    assert caplog.text.count("flow f cannot receive events here, retrying: ") == 1
    assert caplog.text.count("flow f can receive events here again") == 1


def test_a_flow_gets_its_open_journal_back_and_a_closed_one_never(tmp_path: Path) -> None:
    journal_store = JournalStore(tmp_path, "a.b")
    first = journal_store.take("f")
    assert flow_of(first.id) == "f"
    assert first.id.startswith("f.a.b.0.")
    other = journal_store.take("f")
    assert other.id != first.id, "one that is taken is not given out twice"
    journal_store.give_back(first)
    assert journal_store.take("f") is first
    journal_store.give_back(first)
    journal_store.close_all_but(["g"])
    assert (first.closed, other.closed) == (True, False)
    assert journal_store.take("f") not in (first, other)
    journal_store.close()


def test_last_of_several_earlier_journals_hands_over_its_source_state(tmp_path: Path) -> None:
    journal_store = JournalStore(tmp_path, "n")
    for number in range(4):
        journal = journal_store.take("f")
        assert journal.state.get("read", 0) == number
        journal.append(NO_EVENTS, {"read": number + 1})
        journal.sync()
        journal_store.give_back(journal)
        journal_store.close_all_but([])
    journal_store.close()
    again = JournalStore(tmp_path, "n")
    assert again.take("f").state["read"] == 4
    again.close()


def test_a_journal_in_use_by_another_process_is_taken_when_that_has_ended(tmp_path: Path) -> None:
    before = JournalStore(tmp_path, "n")
    journal = before.take("f")
    journal_store = JournalStore(tmp_path, "n", predecessor_seconds=0.0)
    assert dict(journal_store.journals) == {}
    with pytest.raises(UserError, match="in use"):
        journal_store.take("f")
    before.close()
    assert journal_store.take("f").id == journal.id
    journal_store.close()


def test_a_damaged_journal_is_not_served_nor_replaced(tmp_path: Path) -> None:
    journal_store = JournalStore(tmp_path, "n")
    journal = journal_store.take("f")
    journal_store.close()
    (tmp_path / "journals/0" / journal.id / "checkpoint").write_bytes(b"rubbish")
    journal_store = JournalStore(tmp_path, "n")
    assert dict(journal_store.journals) == {}
    with pytest.raises(CorruptError):
        journal_store.take("f")
    journal_store.take("g")
    journal_store.close()


def test_unusable_directory_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot use the data directory"):
        JournalStore(tmp_path / "file", "n")


@pytest.mark.parametrize("folder", ["noted", "."])
@pytest.mark.parametrize("found", ["{", "[]", "[" * 100_000])
@pytest.mark.slow
def test_damaged_source_state_fails_the_flow_and_makes_no_journals(
    tmp_path: Path, folder: str, found: str
) -> None:
    async def test() -> None:
        running = Running(tmp_path)
        running.write("1")
        await running.all_safe()
        await running.end()
        damaged = tmp_path / "sources" / "0" / folder / "f.json"
        damaged.write_text(found)
        if folder == ".":  # asked for where there is no journal
            shutil.rmtree(tmp_path / "journals")
        running.journal_store = JournalStore(tmp_path, "here")
        before = len(running.journal_store.journals)
        running.flow = running.run()
        status = await running.status("failed")
        assert f"{damaged} is damaged" in status["error"]
        await asyncio.sleep(0.3)
        assert len(running.journal_store.journals) == before
        damaged.unlink()
        await running.status("running")
        await running.end()

    run(test)
