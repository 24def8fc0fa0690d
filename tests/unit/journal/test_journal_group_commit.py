"""Group commit: nothing is called durable before it is, nothing waits without need, nothing is lost
or taken twice when the disk is full."""

from __future__ import annotations

import contextlib
import errno
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flumeng.journal.log.errors import JournalFailedError
from flumeng.journal.log.frame import Payload
from flumeng.journal.log.group_commit import TEND_SECONDS, GroupCommit
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.limits import Limits
from flumeng.platform.errors import UnavailableError
from tests.testkit.journal import FaultyDisk, numbered_events
from tests.testkit.waiting import wait_for

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Lines:
    """``count`` events from ``first`` on."""

    first: int
    count: int
    nbytes: int = 1000


def encoded(item: Lines) -> Payload:
    state = {"end": item.first + item.count}
    return Payload.encode(numbered_events(item.first, item.count), state)


class HeldDisk(FaultyDisk):
    """A disk whose syncs wait while ``open`` is not set, but for as many as ``let`` names."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self._allowed = threading.Semaphore(0)

    def let(self, syncs: int) -> None:
        self._allowed.release(syncs)

    def sync(self, fd: int) -> None:
        wait_for(lambda: self.open.is_set() or self._allowed.acquire(blocking=False))
        super().sync(fd)


@dataclass
class Told:
    """The notifications of a group commit to its owner, in order."""

    durable: list[Lines]
    groups: list[int]
    pressure: list[bool]
    failed: list[Exception]


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
def journal(tmp_path: Path, disk: HeldDisk) -> Iterator[Journal]:
    journal = Journal.create(tmp_path, "web.n1.0.0a1b2c3d", segment_bytes=20_000, disk=disk)
    yield journal
    disk.open.set()
    journal.check()
    journal.close()


@pytest.fixture
def told() -> Told:
    return Told([], [], [], [])


Start = Callable[..., GroupCommit[Lines]]


@pytest.fixture
def start(journal: Journal, told: Told, disk: HeldDisk) -> Iterator[Start]:
    """Start a group commit that reports to ``told``; stopped at the end."""
    running: list[GroupCommit[Lines]] = []

    def build(items: list[Lines]) -> Iterable[Payload]:
        told.groups.append(len(items))
        for item in items:
            yield encoded(item)

    def on_durable(items: list[Lines], end: int) -> None:
        assert items[-1].first + items[-1].count == end, "another end than that of the group"
        assert end <= journal.safe, "durable was said too early"
        told.durable.extend(items)

    def start(**options: float) -> GroupCommit[Lines]:
        commit = GroupCommit(
            journal,
            build,
            on_durable=on_durable,
            on_pressure=told.pressure.append,
            on_failed=told.failed.append,
            **options,  # type: ignore[arg-type]
        )
        running.append(commit)
        return commit

    yield start
    disk.open.set()
    for commit in running:
        commit.stop()


def bodies(journal: Journal) -> list[int]:
    batches = journal.read(journal.floor, journal.safe)
    return [int(body.as_py().rstrip(b".")) for batch in batches for body in batch.column("body")]


def test_i1_events_are_durable_after_the_sync_in_order(
    start: Start, journal: Journal, told: Told
) -> None:
    commit = start()
    items = [Lines(first, 5) for first in range(0, 500, 5)]
    for item in items:
        commit.submit(item)
    commit.drain(TIMEOUT_SECONDS)
    assert told.durable == items
    assert commit.pending_bytes == 0
    assert bodies(journal) == list(range(500))
    assert dict(journal.state) == {"end": 500}


def test_items_during_a_sync_make_one_group(start: Start, disk: HeldDisk, told: Told) -> None:
    commit = start()
    disk.open.clear()
    commit.submit(Lines(0, 1))
    wait_for(lambda: told.groups == [1])
    for first in range(1, 101):
        commit.submit(Lines(first, 1))
    assert told.durable == []
    disk.open.set()
    commit.drain(TIMEOUT_SECONDS)
    assert told.groups == [1, 100]


def test_a_group_is_bounded_in_bytes(start: Start, disk: HeldDisk, told: Told) -> None:
    commit = start(group_bytes=10_000)
    disk.open.clear()
    commit.submit(Lines(0, 1))
    wait_for(lambda: told.groups == [1])
    for first in range(1, 26):
        commit.submit(Lines(first, 1))
    disk.open.set()
    commit.drain(TIMEOUT_SECONDS)
    assert told.groups == [1, 10, 10, 5]


@pytest.mark.slow
def test_single_item_waits_for_others_only_as_long_as_allowed(start: Start, told: Told) -> None:
    commit = start(max_delay_seconds=1.0)
    begin = time.monotonic()
    for first in range(3):
        commit.submit(Lines(first, 1))
    commit.drain(TIMEOUT_SECONDS)
    assert told.groups == [3]
    assert 1.0 <= time.monotonic() - begin < TIMEOUT_SECONDS / 2


def test_a_full_group_does_not_wait(start: Start, told: Told) -> None:
    commit = start(max_delay_seconds=TIMEOUT_SECONDS, group_bytes=3000)
    for first in range(3):
        commit.submit(Lines(first, 1))
    commit.drain(TIMEOUT_SECONDS / 2)
    assert told.groups == [3]


@pytest.mark.parametrize("group_bytes", [1, 3, 4])
def test_commit_group_may_hold_one_item(start: Start, told: Told, group_bytes: int) -> None:
    commit = start(group_bytes=group_bytes)
    for first in range(3):
        commit.submit(Lines(first, 1))
        commit.drain(TIMEOUT_SECONDS / 2)
    assert [item.first for item in told.durable] == [0, 1, 2]


def test_group_whose_senders_are_held_back_does_not_wait(start: Start, told: Told) -> None:
    commit = start(max_delay_seconds=TIMEOUT_SECONDS, max_bytes=3000, group_bytes=1 << 20)
    for first in range(4):
        commit.submit(Lines(first, 1))
    commit.drain(TIMEOUT_SECONDS / 2)
    assert told.pressure[-1] is False


def test_a_backlog_does_not_wait(start: Start, disk: HeldDisk, told: Told) -> None:
    commit = start(max_delay_seconds=TIMEOUT_SECONDS, group_bytes=1000)
    disk.open.clear()
    commit.submit(Lines(0, 1))
    wait_for(lambda: told.groups == [1])
    commit.submit(Lines(1, 1, nbytes=500))
    disk.open.set()
    commit.drain(TIMEOUT_SECONDS / 2)


def test_back_pressure_is_signalled_at_the_marks_and_alternates(
    start: Start, disk: HeldDisk, told: Told
) -> None:
    commit = start(max_bytes=10_000, group_bytes=2000)
    disk.open.clear()
    for first in range(10):
        commit.submit(Lines(first, 1))
    assert told.pressure == []
    commit.submit(Lines(10, 1))
    commit.submit(Lines(11, 1))
    assert (told.pressure, commit.pending_bytes) == ([True], 12_000)
    disk.open.set()
    commit.drain(TIMEOUT_SECONDS)
    assert told.pressure == [True, False]


def test_i1_next_group_is_built_during_a_sync_and_durable_after_its_own(
    start: Start, journal: Journal, disk: HeldDisk, told: Told
) -> None:
    disk.open.clear()
    commit = start(group_bytes=4000)
    commit.submit(Lines(0, 10))
    wait_for(lambda: told.groups == [1])
    for first in range(10, 100, 10):
        commit.submit(Lines(first, 10))
    disk.let(1)
    wait_for(lambda: told.groups == [1, 4, 4])
    assert (journal.safe, [item.first for item in told.durable]) == (10, [0])
    disk.open.set()
    commit.drain(TIMEOUT_SECONDS)
    assert [item.first for item in told.durable] == list(range(0, 100, 10))
    assert bodies(journal) == list(range(100))


def test_drain_waits_for_earlier_items_only(journal: Journal) -> None:
    """A source that starts beside a busy one waits for a moment only."""
    busy = threading.Event()
    busy.set()

    def build(items: list[Lines]) -> Iterable[Payload]:
        if busy.is_set():
            commit.submit(Lines(0, 1))
        return map(encoded, items)

    commit = GroupCommit(journal, build)
    commit.submit(Lines(0, 1))
    commit.drain(2.0)
    assert journal.safe >= 1
    assert commit.pending_bytes
    busy.clear()
    commit.stop()


def test_after_a_failed_sync_nothing_is_durable_any_more(
    start: Start, disk: HeldDisk, told: Told
) -> None:
    commit = start()
    commit.submit(Lines(0, 1))
    commit.drain(TIMEOUT_SECONDS)
    disk.failing_sync = errno.EIO
    commit.submit(Lines(1, 1))
    wait_for(lambda: bool(told.failed))
    assert isinstance(told.failed[0], JournalFailedError)
    with pytest.raises(JournalFailedError):
        commit.submit(Lines(2, 1))
    with pytest.raises(JournalFailedError):
        commit.drain(TIMEOUT_SECONDS)
    assert told.durable == [Lines(0, 1)]
    assert len(told.failed) == 1


def test_failing_builder_fails_the_commit_and_loses_nothing_silently(
    journal: Journal, told: Told
) -> None:
    def build(items: list[Lines]) -> Iterable[Payload]:
        raise ValueError(f"cannot build {items}")

    commit = GroupCommit(journal, build, on_failed=told.failed.append)
    commit.submit(Lines(0, 1))
    with pytest.raises(JournalFailedError, match="cannot build"):
        commit.drain(TIMEOUT_SECONDS)
    wait_for(lambda: len(told.failed) == 1)
    commit.stop()


def test_a_full_disk_is_waited_for_and_nothing_is_taken_twice(
    start: Start, journal: Journal, disk: HeldDisk, told: Told
) -> None:
    commit = start()
    disk.fail_write(errno.ENOSPC, room=2000)  # in the middle of a group
    items = [Lines(first, 5) for first in range(0, 100, 5)]
    for item in items:
        commit.submit(item)
    commit.drain(TIMEOUT_SECONDS)
    assert (told.durable, told.failed) == (items, [])
    assert bodies(journal) == list(range(100))


def test_trims_go_on_while_the_disk_is_full(
    start: Start, journal: Journal, disk: HeldDisk, told: Told
) -> None:
    commit = start()
    for first in range(0, 2000, 50):
        commit.submit(Lines(first, 50))
    commit.drain(TIMEOUT_SECONDS)
    disk.free = 0
    groups = len(told.groups)
    commit.submit(Lines(2000, 1))
    wait_for(lambda: len(told.groups) > groups)
    commit.trim(1000)
    wait_for(lambda: journal.floor > 0)
    with pytest.raises(UnavailableError):
        commit.drain(0.01)
    disk.free = None
    commit.drain(TIMEOUT_SECONDS)
    assert told.durable[-1] == Lines(2000, 1)


def test_a_trim_for_which_there_is_no_room_is_done_with_the_next(
    start: Start, journal: Journal, disk: HeldDisk, told: Told
) -> None:
    commit = start()
    for first in range(0, 2000, 50):
        commit.submit(Lines(first, 50))
    commit.drain(TIMEOUT_SECONDS)
    disk.fail_write(errno.ENOSPC)
    commit.trim(1000)
    wait_for(lambda: not disk.fails)
    assert journal.floor == 0
    commit.trim(1001)
    wait_for(lambda: journal.floor > 0)
    assert told.failed == []


def test_stop_on_a_full_disk_reports_nothing_durable(
    start: Start, journal: Journal, disk: HeldDisk, told: Told
) -> None:
    commit = start()
    disk.free = 0
    commit.submit(Lines(0, 1))
    commit.stop()
    assert (told.durable, journal.safe) == ([], 0)
    disk.free = None


def test_stop_makes_everything_durable_first(start: Start, journal: Journal, told: Told) -> None:
    commit = start(max_delay_seconds=TIMEOUT_SECONDS)
    items = [Lines(first, 1) for first in range(50)]
    for item in items:
        commit.submit(item)
    commit.stop()
    assert told.durable == items
    assert bodies(journal) == list(range(50))


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Open files stay open; this process can open no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_new_segment_waits_for_a_free_descriptor(tmp_path: Path, told: Told) -> None:
    """A roll opens files. That it cannot for a while costs neither the journal nor an event."""
    journal = Journal.create(tmp_path, "web.n1.0.0a1b2c3d", segment_bytes=20_000)
    commit: GroupCommit[Lines] = GroupCommit(
        journal,
        lambda items: map(encoded, items),
        on_pressure=told.pressure.append,
        on_failed=told.failed.append,
    )
    commit.submit(Lines(0, 400))
    commit.drain(TIMEOUT_SECONDS)
    with no_descriptor_left():
        for first in range(400, 1200, 50):
            commit.submit(Lines(first, 50))
        with pytest.raises(UnavailableError):
            commit.drain(1.0)
        assert told.pressure == [True]
        assert commit.held_by == "descriptors: Too many open files"
        commit.trim(400)
    commit.drain(TIMEOUT_SECONDS)
    assert (told.failed, told.pressure, commit.held_by) == ([], [True, False], "")
    commit.stop()
    assert bodies(journal) == list(range(journal.floor, 1200))
    journal.close()


@pytest.mark.slow
def test_work_that_waits_for_a_descriptor_is_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Retained segments are looked through every second: that was a warning every second."""
    kept = Limits(retain_bytes=1 << 30)
    journal = Journal.create(tmp_path, "web.n1.0.0a1b2c3d", limits=kept, segment_bytes=20_000)
    commit: GroupCommit[Lines] = GroupCommit(journal, lambda items: map(encoded, items))
    for first in range(0, 100_000, 5000):
        commit.submit(Lines(first, 5000, nbytes=4 << 20))
    commit.drain(TIMEOUT_SECONDS)
    commit.trim(90_000)
    wait_for(lambda: journal.acked == 90_000)
    assert (journal.floor, journal.restless) == (0, True)
    with no_descriptor_left():
        journal.limits = Limits(retain_bytes=1)
        time.sleep(4 * TEND_SECONDS)
    wait_for(lambda: journal.floor > 0, "no segment is deleted")
    commit.stop()
    journal.close()
    assert caplog.messages == [
        f"journal {journal.id}: Too many open files; acked events are deleted once that changes"
    ]
