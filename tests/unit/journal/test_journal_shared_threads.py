"""Few threads serve many owners: no job runs twice at once, none waits without need, and idle ones
hold no thread."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.journal.log.frame import Payload
from flumeng.journal.log.group_commit import (
    COMMITS_PER_SECOND,
    FEW_JOURNALS,
    GATHERED_BYTES,
    MOST_GATHERING_SECONDS,
    GroupCommit,
    gathering_seconds,
)
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.shared_threads import Job, SharedThreads
from flumeng.platform.errors import UnavailableError
from tests.testkit.journal import FaultyDisk, numbered_events
from tests.testkit.waiting import wait_for

TIMEOUT_SECONDS = 60.0


class Counted:
    """A job that counts its runs and fails when two of them overlap."""

    def __init__(
        self,
        threads: SharedThreads,
        wait: float | None = None,
        work: float = 0,
        *,
        busy: bool = False,
    ) -> None:
        self.runs = 0
        self._busy = busy
        self._wait, self._work = wait, work
        self._running = threading.Lock()
        self.overlapped = False
        self.job: Job = threads.job(self._steps())

    def _steps(self) -> Iterator[float | None]:
        while True:
            self.overlapped |= not self._running.acquire(blocking=False)
            self.runs += 1
            if self._busy:
                self.job.has_work()
            time.sleep(self._work)
            self._running.release()
            yield self._wait


def test_a_thousand_waiting_jobs_hold_no_thread_and_running_ones_share_a_few() -> None:
    threads = SharedThreads(4, "test")
    jobs = [Counted(threads, work=0.0005) for _ in range(1000)]
    assert threads.threads == 0
    for _ in range(3):
        for counted in jobs:
            counted.job.wake()
    wait_for(lambda: all(counted.runs for counted in jobs))
    assert threads.threads <= 4
    assert not any(counted.overlapped for counted in jobs)


def test_job_woken_while_it_runs_runs_again() -> None:
    threads = SharedThreads(2, "test")
    slow = Counted(threads, work=0.05)
    slow.job.wake()
    wait_for(lambda: slow.runs == 1)
    slow.job.wake()
    slow.job.wake()
    wait_for(lambda: slow.runs == 2)
    time.sleep(0.2)
    assert (slow.runs, slow.overlapped) == (2, False)


def test_waiting_job_runs_at_its_time_and_an_earlier_call_comes_first() -> None:
    threads = SharedThreads(2, "test")
    late, early = Counted(threads), Counted(threads)
    began = time.monotonic()
    late.job.wake(TIMEOUT_SECONDS)
    early.job.wake(0.05)
    wait_for(lambda: early.runs == 1)
    assert time.monotonic() - began >= 0.05
    late.job.wake(0.01)
    wait_for(lambda: late.runs == 1)
    repeated = Counted(threads, wait=0.01)
    repeated.job.wake()
    wait_for(lambda: repeated.runs >= 5)


def test_hanging_job_delays_no_other() -> None:
    threads = SharedThreads(2, "test")
    stuck = threading.Event()

    def hang() -> Iterator[float | None]:
        stuck.wait(TIMEOUT_SECONDS)
        yield None

    threads.job(hang()).wake()
    others = [Counted(threads) for _ in range(50)]
    for counted in others:
        counted.job.wake()
    wait_for(lambda: all(counted.runs for counted in others))
    stuck.set()


def test_jobs_run_one_after_the_other_where_the_system_gives_no_more_threads() -> None:
    """A machine whose limit of threads is reached; a stack that no memory holds stands for it."""
    threads = SharedThreads(2, "test")
    first, second = Counted(threads, work=0.05), Counted(threads)
    first.job.wake()
    wait_for(lambda: first.runs == 1)
    size = threading.stack_size(1 << 46)
    try:
        second.job.wake()
        wait_for(lambda: second.runs == 1)
        with pytest.raises(RuntimeError, match="thread"):
            Counted(SharedThreads(2, "other")).job.wake()
    finally:
        threading.stack_size(size)
    assert threads.threads == 1


def test_job_without_progress_for_longest_is_named() -> None:
    threads = SharedThreads(2, "test")
    go_on = {name: threading.Event() for name in "ab"}

    def hang(name: str) -> Iterator[float | None]:
        go_on[name].wait(TIMEOUT_SECONDS)
        yield None

    for name in "ab":
        assert not threads.stuck(0.0)
        threads.job(hang(name), name).wake()
        wait_for(lambda: threads.stuck(0.0) != "")
        if name == "a":
            time.sleep(0.01)
            assert (threads.stuck(0.005), threads.stuck(TIMEOUT_SECONDS)) == ("a", "")
            go_on["a"].set()
            wait_for(lambda: not threads.stuck(0.0))
    assert threads.stuck(0.0) == "b"
    go_on["b"].set()
    wait_for(lambda: not threads.stuck(0.0))


def test_journal_with_permanent_work_counts_as_making_progress(tmp_path: Path) -> None:
    """Its job never ends a step; each group that is durable is progress all the same."""
    threads = SharedThreads(1, "test")
    journal = Journal.create(tmp_path, "web.n1.0.0a1b2c3d")
    enough = threading.Event()

    def submit_again(*_: object) -> None:
        if not enough.is_set():
            commit.submit(numbered_events(0, 1))

    commit: GroupCommit[pa.RecordBatch] = GroupCommit(
        journal, functools.partial(map, Payload.encode), on_durable=submit_again, threads=threads
    )
    commit.submit(numbered_events(0, 1))
    wait_for(lambda: journal.safe > 2)
    began = time.monotonic()
    wait_for(lambda: journal.safe > 20)
    stuck = threads.stuck(time.monotonic() - began)
    enough.set()
    commit.stop()
    journal.close()
    assert not stuck


@pytest.mark.slow
def test_idle_threads_end_after_a_while() -> None:
    threads = SharedThreads(4, "test", keep_seconds=0.05)
    jobs = [Counted(threads, work=0.01) for _ in range(8)]
    for counted in jobs:
        counted.job.wake()
    wait_for(lambda: all(counted.runs for counted in jobs))
    wait_for(lambda: threads.threads == 0)
    jobs[0].job.wake()
    wait_for(lambda: jobs[0].runs == 2)


def test_a_failing_job_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    threads = SharedThreads(1, "test")

    def fail() -> Iterator[float | None]:
        yield None
        raise ValueError("as it was told to")

    failing, other = threads.job(fail(), "web.n1.0.a"), Counted(threads)
    failing.wake()
    failing.wake()
    other.job.wake()
    wait_for(lambda: other.runs == 1)
    failing.wake()
    other.job.wake()
    wait_for(lambda: other.runs == 2)
    assert caplog.messages == ["job web.n1.0.a failed, and stops until a restart"]


@pytest.mark.slow
def test_sixty_journals_commit_on_few_threads_though_most_disks_are_full(tmp_path: Path) -> None:
    """All but one are on a full disk; the one goes on, and so do they when there is room."""
    threads = SharedThreads(3, "test")
    full = FaultyDisk()
    full.free = 0
    journals = [
        Journal.create(tmp_path, f"web.n1.0.0a1b{number:04x}", disk=full if number else None)
        for number in range(60)
    ]

    def commit(journal: Journal) -> GroupCommit[pa.RecordBatch]:
        return GroupCommit(journal, functools.partial(map, Payload.encode), threads=threads)

    commits = [commit(journal) for journal in journals]
    before = threading.active_count()
    for each in commits:
        each.submit(numbered_events(0, 1))
    wait_for(lambda: all(each.held_by for each in commits[1:]))
    for _ in range(20):
        commits[0].submit(numbered_events(0, 1))
        commits[0].drain(TIMEOUT_SECONDS)
    assert threading.active_count() - before <= 3 + 1
    assert commits[1].held_by == "disk full: 0 MiB free, 64 MiB are kept free"
    full.free = None
    for each in commits:
        each.drain(TIMEOUT_SECONDS)
        each.stop()
    assert {journal.safe for journal in journals} == {1, 21}
    for journal in journals:
        journal.close()


@pytest.fixture
def crowd() -> Iterator[SharedThreads]:
    """Threads with a hundred other journals, which stay busy during the whole test."""
    threads = SharedThreads(4, "test")
    others = [Counted(threads, busy=True) for _ in range(100)]
    ended = threading.Event()

    def keep_busy() -> None:
        while not ended.wait(0.005):
            for other in others:
                other.job.wake()

    keeper = threading.Thread(target=keep_busy)
    keeper.start()
    wait_for(lambda: threads.busy >= len(others))
    yield threads
    ended.set()
    keeper.join()


@pytest.mark.slow
def test_thousands_of_busy_journals_share_a_limited_number_of_commits(
    tmp_path: Path, crowd: SharedThreads
) -> None:
    """A sync costs the same for one event and for a thousand. Trimming in between adds none."""
    assert gathering_seconds(FEW_JOURNALS) == 0
    assert gathering_seconds(100) == 100 / COMMITS_PER_SECOND
    assert gathering_seconds(100_000) == MOST_GATHERING_SECONDS
    groups: list[int] = []

    def build(items: list[memoryview]) -> list[Payload]:
        groups.append(len(items))
        return [Payload.encode(numbered_events(0, 1))]

    journal = Journal.create(tmp_path, "f.n.0.00000001")
    commit = GroupCommit(journal, build, threads=crowd)
    began = time.monotonic()
    for _ in range(200):
        commit.submit(memoryview(b"x"))
        commit.trim(journal.safe)
        time.sleep(0.01)
    commit.stop()
    elapsed = time.monotonic() - began
    assert sum(groups) == 200
    assert 2 <= len(groups) <= elapsed / gathering_seconds(100) + 2
    journal.close()


class Crowd(SharedThreads):
    """Threads that seem to have so many busy journals that groups gather for longest."""

    @property
    def busy(self) -> int:
        return 100_000


def test_large_items_are_committed_without_gathering(tmp_path: Path) -> None:
    groups: list[int] = []

    def build(items: list[memoryview]) -> list[Payload]:
        groups.append(len(items))
        return []

    journal = Journal.create(tmp_path, "f.n.0.00000001")
    commit = GroupCommit(journal, build, threads=Crowd(4, "test"))
    began = time.monotonic()
    for _ in range(8):
        commit.submit(memoryview(bytes(GATHERED_BYTES)))
        commit.drain(TIMEOUT_SECONDS)
    assert time.monotonic() - began < 4 * MOST_GATHERING_SECONDS
    commit.submit(memoryview(b"little"))
    with pytest.raises(UnavailableError):
        commit.drain(0.2)
    commit.stop()
    assert groups == [1] * 9
    journal.close()


def test_timer_fires_though_its_thread_has_taken_other_work() -> None:
    """The only idle thread waits for the timer, and is given something that takes long."""
    threads = SharedThreads(4, "test")
    ran, released = threading.Event(), threading.Event()

    def hold() -> Iterator[float | None]:
        yield None
        released.wait(TIMEOUT_SECONDS)
        yield None

    def tick() -> Iterator[float | None]:
        yield None
        ran.set()
        yield None

    slow, timed = threads.job(hold()), threads.job(tick())
    for job in (slow, timed):
        job.wake()
        time.sleep(0.1)  # until the thread is idle again
    assert threads.threads == 1
    timed.wake(0.2)
    slow.wake()
    assert ran.wait(TIMEOUT_SECONDS / 10)
    released.set()


def test_jobs_that_only_wait_do_not_count_as_busy() -> None:
    """Else journals that keep events for a time would slow down all others."""
    threads = SharedThreads(4, "test")
    idle = [Counted(threads, wait=0.01) for _ in range(50)]
    for one in idle:
        one.job.wake()
    wait_for(lambda: all(one.runs > 3 for one in idle))
    assert threads.busy == 0


@pytest.mark.slow
def test_jobs_at_rest_no_longer_count_as_busy() -> None:
    """Else the first event after a rest would wait for others that have none."""
    threads = SharedThreads(4, "test")
    job = Counted(threads, wait=0.01).job
    job.has_work()
    assert threads.busy == 1
    wait_for(lambda: threads.busy == 0)
