"""Tasks of a collector share the commits of a table: each batch is there once, and one that fails
fails alone. On real tables of both formats; many interleavings on a table in memory."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.connectors.api.sink import BatchId, TaskRevision
from flumeng.connectors.lakehouse import group_commit
from flumeng.connectors.lakehouse.group_commit import MANY_CALLS, Addition, GroupCommit, to_commit
from flumeng.connectors.lakehouse.tables import Caller, OvertakenError, Table, TableSink
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from tests.testkit.owner_steps import CrashError
from tests.testkit.servers.tables import DeltaDirectory, IcebergDirectory, Lake, elsewhere, staged
from tests.testkit.waiting import wait_for

TASKS = 8
Commit = Callable[[BatchId | None], None]


@pytest.fixture(params=[DeltaDirectory, IcebergDirectory], ids=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    found: Lake = request.param(tmp_path)
    return found


@pytest.fixture
def patient() -> GroupCommit:
    """A group that is committed when all of its tasks wait, on a slow machine too."""
    return GroupCommit(gather_seconds=10.0)


def task(number: int) -> TaskRevision:
    return TaskRevision("web", f"collect.{number}", 1)


def sinks(lake: Lake, commits: GroupCommit, count: int) -> list[TableSink]:
    return [TableSink(lake.our_table(), commits, task(n)) for n in range(count)]


def batch(task: int, number: int = 1) -> BatchId:
    return BatchId(f"web.collect.{task}.abc", number)


def rows(*names: str, **more: Any) -> pa.Table:
    return pa.table({"event": list(names), **more})


def commit_of(sink: TableSink, events: pa.Table) -> Commit:
    commit = sink.written(staged(sink, events)).commit
    assert commit is not None
    return commit


def at_once(commits: Sequence[tuple[Commit, BatchId]]) -> list[BaseException | None]:
    """The exceptions of each."""
    outcomes: list[BaseException | None] = [None] * len(commits)
    start = threading.Barrier(len(commits))

    def run(number: int) -> None:
        commit, identity = commits[number]
        start.wait()
        try:
            commit(identity)
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(commits))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return outcomes


def found(lake: Lake) -> list[str]:
    return sorted(lake.rows()["event"].to_pylist())


@pytest.mark.slow
def test_concurrent_tasks_share_a_commit(lake: Lake) -> None:
    writers = [lake.sink(task=task(n)) for n in range(TASKS)]
    commits = [(commit_of(one, rows(f"{n}")), batch(n)) for n, one in enumerate(writers)]
    assert at_once(commits) == [None] * TASKS
    assert found(lake) == [f"{n}" for n in range(TASKS)]
    assert lake.commits() <= 2
    writers = [lake.sink(task=task(n)) for n in range(TASKS)]
    again = [(commit_of(one, rows(f"{n}")), batch(n)) for n, one in enumerate(writers)]
    before = lake.commits()
    assert at_once(again) == [None] * TASKS
    assert found(lake) == [f"{n}" for n in range(TASKS)], "each number was there"
    assert lake.commits() == before


@pytest.mark.slow
def test_numbers_of_a_group_are_looked_up_one_by_one(lake: Lake, patient: GroupCommit) -> None:
    """Some members were committed before they died, and some not."""
    for n in (1, 3):
        commit_of(lake.sink(), rows(f"{n}"))(batch(n))
    writers = sinks(lake, patient, 4)
    commits = [(commit_of(one, rows(f"{n}")), batch(n)) for n, one in enumerate(writers)]
    assert at_once(commits) == [None] * 4
    assert found(lake) == ["0", "1", "2", "3"]
    assert lake.commits() == 3


@pytest.mark.slow
def test_member_whose_files_do_not_fit_any_more_fails_alone(
    lake: Lake, patient: GroupCommit
) -> None:
    first = elsewhere(lake.sink())
    commit_of(first, rows("x", n=[1]))(batch(0))
    late, *writers = sinks(lake, patient, 4)
    commits = [(commit_of(late, rows("a", n=[1])), batch(0, 2))]
    lake.drop("n")
    before = lake.commits()
    commits += [(commit_of(one, rows(f"{n}")), batch(n)) for n, one in enumerate(writers, 1)]
    failed, *well = at_once(commits)
    assert isinstance(failed, UnavailableError)
    assert "changed while" in str(failed)
    assert well == [None] * 3
    assert found(lake) == ["1", "2", "3", "x"]
    assert lake.commits() == before + 1
    commit_of(elsewhere(late), rows("a", n=[1]))(batch(0, 2))
    assert found(lake) == ["1", "2", "3", "a", "x"]


def test_member_that_the_library_cannot_commit_fails_alone(
    tmp_path: Path, patient: GroupCommit
) -> None:
    lake = IcebergDirectory(tmp_path)
    far = pa.array([2**62], pa.timestamp("us", "UTC"))
    near = pa.array([0], pa.timestamp("us", "UTC"))
    times = [near, far, near, near]
    made = zip(sinks(lake, patient, 4), times, strict=True)
    commits = [(commit_of(one, rows(f"{n}", at=at)), batch(n)) for n, (one, at) in enumerate(made)]
    errors = at_once(commits)
    assert isinstance(errors.pop(1), UserError)
    assert errors == [None] * 3
    assert found(lake) == ["0", "2", "3"]


@pytest.mark.slow
def test_member_that_was_overtaken_adds_nothing_and_the_others_are_there(
    lake: Lake, patient: GroupCommit
) -> None:
    """Its next owner commits its batch between the group's look and the group's commit."""
    slept: list[int] = []

    def sleep_first(additions: Sequence[Addition]) -> None:
        slept.append(len(additions))
        if len(slept) == 1:
            commit_of(elsewhere(lake.sink()), rows("2"))(batch(2))

    writers = [TableSink(lake.our_table(before=sleep_first), patient, task(n)) for n in range(4)]
    commits = [(commit_of(one, rows(f"{n}")), batch(n)) for n, one in enumerate(writers)]
    assert at_once(commits) == [None] * 4
    assert slept[0] == 4
    assert found(lake) == ["0", "1", "2", "3"]


def test_owner_and_its_successor_in_one_group_add_one_batch(
    lake: Lake, patient: GroupCommit
) -> None:
    """An owner that was overtaken may still be in the same process."""
    sinks_of_both = sinks(lake, patient, 2)
    commits = [(commit_of(one, rows("a", "b")), batch(0)) for one in sinks_of_both]
    assert at_once(commits) == [None, None]
    assert found(lake) == ["a", "b"]


def test_task_that_is_alone_waits_for_nothing(tmp_path: Path) -> None:
    commits = GroupCommit(gather_seconds=60.0, gap_seconds=60.0)
    (sink,) = sinks(DeltaDirectory(tmp_path), commits, 1)
    began = time.monotonic()
    for number in range(3):
        commit_of(sink, rows("a"))(batch(0, number))
    assert time.monotonic() - began < 50


class Recorder:
    """A commit function that holds the first commit until ``go``."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.began, self.go = threading.Event(), threading.Event()

    def add(self, additions: Sequence[Addition]) -> Sequence[Addition]:
        self.groups.append(len(additions))
        self.began.set()
        if len(self.groups) == 1:
            assert self.go.wait(60)
        return []

    def commit(self, group: GroupCommit, task: int) -> Commit:
        def commit(_identity: BatchId | None) -> None:
            assert group.commit(adding(task), f"{task}", self.add, 50.0)

        return commit


def test_tasks_gather_while_a_commit_is_under_way() -> None:
    """No task waits for one that has gone."""
    group, recorder = GroupCommit(), Recorder()
    gone = GroupCommit()
    group.join(gone, "gone")
    del gone
    first = threading.Thread(target=at_once, args=([(recorder.commit(group, 0), batch(0))],))
    first.start()
    assert recorder.began.wait(60)
    others = [(recorder.commit(group, n), batch(n)) for n in range(1, 5)]
    second = threading.Thread(target=at_once, args=(others,))
    second.start()
    wait_for(lambda: len(group._waiting) >= 4)
    recorder.go.set()
    first.join(60)
    second.join(60)
    assert recorder.groups == [1, 4]


def test_commit_that_timed_out_is_not_done_later() -> None:
    group, recorder = GroupCommit(), Recorder()
    first = threading.Thread(target=group.commit, args=(adding(0), "0", recorder.add, 60))
    first.start()
    assert recorder.began.wait(60)
    with pytest.raises(UnavailableError, match="take too long"):
        group.commit(adding(1), "1", recorder.add, 0.01)
    recorder.go.set()
    first.join(60)
    assert group.commit(adding(2), "2", recorder.add, 60)
    assert recorder.groups == [1, 1]


def test_many_calls_do_not_wait_for_idle_members() -> None:
    group, recorder = GroupCommit(gather_seconds=60.0), Recorder()
    recorder.go.set()
    group.join(recorder, "idle")
    commits = [(recorder.commit(group, n), batch(n)) for n in range(MANY_CALLS)]
    assert at_once(commits) == [None] * MANY_CALLS
    assert recorder.groups == [MANY_CALLS]


class Hanging:
    """A table whose commits begin when ``answer`` is set."""

    def __init__(self, table: Table, answer: threading.Event) -> None:
        self._table = table
        self._answer = answer
        self.prepare = table.prepare

    def add(self, additions: Sequence[Addition]) -> Sequence[Addition]:
        assert self._answer.wait(60)
        return self._table.add(additions)


@pytest.mark.slow
def test_table_that_hangs_fails_all_members_in_time(lake: Lake, patient: GroupCommit) -> None:
    answer = threading.Event()
    tables: list[Any] = [Hanging(lake.our_table(), answer) for _ in range(3)]
    calls = [Caller() for _ in tables]
    writers = [TableSink(tables[n], patient, task(n), calls[n]) for n in range(3)]
    commits = [(commit_of(one, rows(f"{n}")), batch(n)) for n, one in enumerate(writers)]
    for call in calls:
        call.answer_seconds = 0.5
    assert all(isinstance(error, UnavailableError) for error in at_once(commits))
    answer.set()
    writers = sinks(lake, GroupCommit(gather_seconds=10.0), 3)
    again = [(commit_of(one, rows(f"{n}")), batch(n)) for n, one in enumerate(writers)]
    assert at_once(again) == [None] * 3
    assert found(lake) == ["0", "1", "2"], "also when the call that hung commits after all"


class ModelTable:
    """A table in memory: a commit is refused when another one came since the look.

    ``step`` is called before and after each of them.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []
        self._version, self._numbers = 0, dict[str, int]()
        self._lock = threading.Lock()

    def add(self, additions: Sequence[Addition], step: Callable[[], None]) -> Sequence[Addition]:
        with self._lock:
            version, seen = self._version, dict(self._numbers)
        step()
        taken, unfit = to_commit(additions, seen.get, lambda _files: True)
        if taken:
            with self._lock:
                if self._version != version:
                    raise OvertakenError("another commit came first")
                self._version += 1
                self._numbers |= group_commit.numbers(taken)
                self.rows += [(one.batch.series, one.batch.number) for one in taken if one.batch]
        step()
        return unfit


def adding(task: int, number: int = 1) -> Addition:
    return Addition((), batch(task, number))


BATCHES = 3


class Owners:
    """Owners of tasks in several processes; each believes that it owns its task.

    A process may die at any step, and a reply may be lost.
    """

    def __init__(self, seed: int, tasks: int) -> None:
        self.table = ModelTable()
        self.acked = [0] * tasks
        self._chance = random.Random(seed)

    def live(self, processes: int, *, faults: bool) -> None:
        threads = []
        for _ in range(processes):
            group, dead = GroupCommit(0.001, 0.002), threading.Event()
            for task in [*range(len(self.acked)), *([0, 1] if faults else [])]:
                args = (group, task, dead, faults)
                threads.append(threading.Thread(target=self._own, args=args, daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

    def _own(self, group: GroupCommit, task: int, dead: threading.Event, faults: bool) -> None:
        handle = ModelTable()
        group.join(handle, f"{task}")

        def step() -> None:
            chance = self._chance.random() if faults else 1.0
            if dead.is_set() or chance < 0.02:
                dead.set()
                raise CrashError
            if chance < 0.1:
                raise UnavailableError("no answer")
            if chance < 0.5:
                time.sleep(self._chance.random() / 500)

        def add(additions: Sequence[Addition]) -> Sequence[Addition]:
            return self.table.add(additions, step)

        with suppress(CrashError):
            for _ in range(200):
                number = self.acked[task] + 1
                if number > BATCHES or dead.is_set():
                    return
                with suppress(FlumengError):
                    assert group.commit(adding(task, number), f"{task}", add, 5.0)
                    self.acked[task] = max(self.acked[task], number)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), tasks=st.integers(2, 6), processes=st.integers(1, 3))
def test_each_batch_is_there_once_with_owners_that_die_and_change(
    seed: int, tasks: int, processes: int
) -> None:
    owners = Owners(seed, tasks)
    owners.live(processes, faults=True)
    check(owners, range(tasks), whole=False)
    owners.live(1, faults=False)
    check(owners, range(tasks), whole=True)


def check(owners: Owners, tasks: Iterable[int], *, whole: bool) -> None:
    counts = Counter(owners.table.rows)
    assert max(counts.values(), default=1) == 1
    for task in tasks:
        last = BATCHES if whole else owners.acked[task]
        assert all(counts[batch(task).series, n] == 1 for n in range(1, last + 1))
