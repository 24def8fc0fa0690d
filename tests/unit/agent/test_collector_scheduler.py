"""Many tasks on few threads: idle tasks cost nothing, hanging or failing ones harm only
themselves."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.job import APART_SLOTS, Jobs
from flumeng.agent.collector.outcome import CutShortError
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.slot import SHARED_EVENTS, SHARED_MEMBERS
from flumeng.agent.collector.status import ERROR_CHARACTERS, Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.connectors.api.ranged import Range, Reach
from flumeng.control.zookeeper import tree
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import add_flow
from tests.testkit.collector import (
    BreakingError,
    ScriptedEngine,
    ScriptedPipeline,
    StillPositions,
    register,
)
from tests.testkit.store import FakeStore
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from tests.unit.agent.task_world import spec, waited
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

TASKS = 1000


@dataclass
class World:
    """Tasks of one flow, each with a journal of its own. ``safe``: the ends of the journals."""

    engine: ScriptedEngine = field(default_factory=ScriptedEngine)
    store: FakeStore = field(default_factory=FakeStore)
    scheduler: Scheduler = field(default_factory=Scheduler)
    safe: Counter[str] = field(default_factory=Counter)
    statuses: dict[str, list[Status]] = field(default_factory=dict)
    runners: list[Runner] = field(default_factory=list)
    changed: dict[str, Callable[[], None]] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    hang_seconds: float = PATIENCE_SECONDS

    def __post_init__(self) -> None:
        self.jobs = Jobs(
            self.engine,
            2,
            on_stuck=self.stuck.append,
            shared_limit_seconds=self.hang_seconds,
            cancel_seconds=self.hang_seconds,
        )
        batch = replace(spec().batch, timeout_seconds=self.hang_seconds)
        self.spec = replace(spec(), batch=batch)
        tree.init(self.store)
        add_flow(self.store)

    def run(self, number: int, pipeline: ScriptedPipeline) -> str:
        """Start task ``number``; returns its journal."""
        journal = f"web.n{number}.0.00000000"
        register(self.store, "web", journal)
        assignment = Assignment("web", f"collect.{number}", 1, 1, "", (journal,))
        around = Surroundings(
            store=self.store,
            publisher=Publisher(self.store, gap_seconds=0.0),
            scheduler=self.scheduler,
            jobs=self.jobs,
            build=lambda _: pipeline,
            positions=lambda wake: Ends(self, wake),
            report=self.report,
        )
        self.runners.append(Runner(assignment, around))
        self.runners[-1].start()
        return journal

    def report(self, key: str, status: Status) -> None:
        self.statuses.setdefault(key, []).append(status)

    def append(self, journal: str, events: int) -> None:
        self.safe[journal] += events
        if journal in self.changed:
            self.changed[journal]()

    def ack(self, journal: str) -> int:
        found = self.store.read(paths.ack("web", CURSOR_MAIN, journal))
        return found.value.offset if found else 0

    def last(self, number: int) -> Status:
        return self.statuses[f"web/collect.{number}"][-1]


@dataclass
class Ends(StillPositions):
    """The journals' ends as one task reads them. ``on_change`` is called with each change."""

    world: World
    on_change: Callable[[], None]

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        wanted = list(partitions)
        self.world.changed |= dict.fromkeys(wanted, self.on_change)
        return {name: Reach("", self.world.safe[name]) for name in wanted}


@pytest.fixture
def hang_seconds() -> float:
    return PATIENCE_SECONDS


@pytest.fixture
def world(hang_seconds: float) -> Iterator[World]:
    world = World(hang_seconds=hang_seconds)
    yield world
    for runner in world.runners:
        runner.cancel()
    for runner in world.runners:
        assert runner.join(PATIENCE_SECONDS)


@pytest.mark.long
def test_a_thousand_idle_tasks_take_no_turns_and_a_bounded_number_of_threads(world: World) -> None:
    before = threading.active_count()
    journals = [world.run(number, ScriptedPipeline(world.spec)) for number in range(TASKS)]
    wait_for(lambda: len(world.statuses) == TASKS)
    time.sleep(0.5)
    turns = world.scheduler.turns
    time.sleep(1.0)
    assert world.scheduler.turns == turns
    assert threading.active_count() - before < 100
    world.append(journals[7], 3)
    wait_for(lambda: world.ack(journals[7]) == 3)
    assert world.scheduler.turns - turns < 10


@pytest.mark.long
def test_a_thousand_busy_tasks_share_jobs_of_which_few_run_at_once(world: World) -> None:
    def take_long(_ranges: Sequence[Range]) -> None:
        time.sleep(0.0005)

    pipelines = [ScriptedPipeline(world.spec, take_long, shareable=True) for _ in range(TASKS)]
    journals = [world.run(number, pipeline) for number, pipeline in enumerate(pipelines)]
    wait_for(lambda: len(world.statuses) == TASKS)
    for _ in range(3):
        for journal in journals:
            world.append(journal, 10)
    wait_for(lambda: all(world.ack(journal) == 30 for journal in journals))
    assert world.engine.most_at_once <= 2 + APART_SLOTS
    assert len(world.engine.jobs) < TASKS / 4, "most of them shared"
    assert max(world.engine.jobs) <= SHARED_MEMBERS


def test_batches_grow_while_slots_are_scarce(world: World) -> None:
    may_go = threading.Event()
    blockers = [ScriptedPipeline(world.spec, lambda _: waited(may_go)) for _ in range(2)]
    for number, pipeline in enumerate(blockers):
        world.append(world.run(number, pipeline), 1)
    wait_for(lambda: world.engine.at_once == 2)
    pipeline = ScriptedPipeline(world.spec)
    journal = world.run(2, pipeline)
    for _ in range(5):
        world.append(journal, 10)
        time.sleep(0.05)
    assert pipeline.batches == []
    may_go.set()
    wait_for(lambda: world.ack(journal) == 50)
    assert pipeline.batches == [(Range(journal, 0, 50),)]


def test_batches_of_a_shared_job_are_small_for_any_batch_size(world: World) -> None:
    world.spec = replace(world.spec, batch=replace(world.spec.batch, events=1_000_000))
    may_go = threading.Event()
    blockers = [ScriptedPipeline(world.spec, lambda _: waited(may_go)) for _ in range(2)]
    for number, pipeline in enumerate(blockers):
        world.append(world.run(number, pipeline), 1)
    wait_for(lambda: world.engine.at_once == 2)
    pipelines = [ScriptedPipeline(world.spec, shareable=True) for _ in range(12)]
    journals = [world.run(number, pipeline) for number, pipeline in enumerate(pipelines, 2)]
    for journal in journals:
        world.append(journal, 1)
    wait_for(lambda: world.jobs.load[1] == 12)
    for journal in journals:
        world.append(journal, 50_000)
    may_go.set()
    wait_for(lambda: all(world.ack(journal) == 50_001 for journal in journals))
    assert max(world.engine.jobs) > 10
    assert max(world.engine.events[n] for n, of in enumerate(world.engine.jobs) if of > 1) <= (
        SHARED_EVENTS
    )


@pytest.mark.slow
@pytest.mark.parametrize("hang_seconds", [0.3])
def test_hanging_batch_is_given_up_reported_and_repeated_and_harms_no_other(world: World) -> None:
    may_end = threading.Event()
    tries = []

    def hang_at_first(ranges: Sequence[Range]) -> None:
        tries.append(ranges)
        if len(tries) <= 2:
            may_end.wait(PATIENCE_SECONDS)

    hanging = world.run(0, ScriptedPipeline(world.spec, hang_at_first, shareable=True))
    others = [world.run(n, ScriptedPipeline(world.spec, shareable=True)) for n in range(1, 20)]
    wait_for(lambda: len(world.statuses) == 20)
    world.append(hanging, 10)
    wait_for(lambda: tries)
    for journal in others:
        world.append(journal, 10)
    wait_for(lambda: all(world.ack(journal) == 10 for journal in others))
    looking = threading.Event()
    threading.Thread(target=look, args=(world, looking), daemon=True).start()
    wait_for(lambda: world.last(0).state == "failed")
    assert "a batch for sinks[0]." in str(world.last(0).error)
    assert "has hung: no end after" in str(world.last(0).error)
    wait_for(lambda: len(tries) == 2)
    assert world.ack(hanging) == 0
    wait_for(lambda: len(world.engine.cancelled) == 2)
    may_end.set()
    wait_for(lambda: world.ack(hanging) == 10)
    assert sum(world.engine.apart) >= 2, "from the first hang until a batch ended"
    wait_for(lambda: world.last(0).state == "running")
    assert all(world.statuses[f"web/collect.{n}"] == [world.last(n)] for n in range(1, 20))
    looking.set()


@pytest.mark.slow
@pytest.mark.parametrize("hang_seconds", [0.3])
def test_batch_behind_a_hanging_one_is_given_up_with_it(world: World) -> None:
    """It is written, and nothing of it is acked before the earlier batch is."""
    may_end = threading.Event()
    tries: list[tuple[int, int]] = []

    def hang_at_first(ranges: Sequence[Range]) -> None:
        (piece,) = ranges
        tries.append((piece.start, piece.end))
        if tries.count((0, 100)) == 1 and piece.start == 0:
            may_end.wait(PATIENCE_SECONDS)

    looking = threading.Event()
    world.safe["web.n0.0.00000000"] = 200
    journal = world.run(0, ScriptedPipeline(world.spec, hang_at_first))
    wait_for(lambda: sorted(tries) == [(0, 100), (100, 200)])
    assert world.ack(journal) == 0
    threading.Thread(target=look, args=(world, looking), daemon=True).start()
    wait_for(
        lambda: "failed" in [status.state for status in world.statuses.get("web/collect.0", ())]
    )
    wait_for(lambda: world.ack(journal) == 200)
    assert sorted(tries[2:]) == [(0, 100), (100, 200)]
    may_end.set()
    looking.set()


@pytest.mark.slow
def test_batch_with_less_time_than_others_shares_no_job(world: World) -> None:
    """Or its cancellation would cancel theirs."""
    hasty = replace(world.spec, batch=replace(world.spec.batch, timeout_seconds=1.0))
    may_go = threading.Event()
    for number in range(2):
        blocker = ScriptedPipeline(world.spec, lambda _: waited(may_go))
        world.append(world.run(number, blocker), 1)
    wait_for(lambda: world.engine.at_once == 2)
    journals = [
        world.run(n, ScriptedPipeline(hasty if n == 5 else world.spec, shareable=True))
        for n in range(2, 8)
    ]
    for journal in journals:
        world.append(journal, 10)
    time.sleep(0.5)
    may_go.set()
    wait_for(lambda: all(world.ack(journal) == 10 for journal in journals))
    assert sorted(world.engine.jobs) == [1, 1, 1, 5]


def look(world: World, end: threading.Event) -> None:
    while not end.wait(0.02):
        world.jobs.check_limits()
        world.scheduler.check_limits()


@pytest.mark.slow
@pytest.mark.parametrize("hang_seconds", [0.3])
def test_job_that_the_engine_does_not_cancel_is_reported(world: World) -> None:
    may_end = threading.Event()
    journal = world.run(0, ScriptedPipeline(world.spec, lambda _: waited(may_end)))
    world.append(journal, 10)
    wait_for(lambda: world.engine.at_once)
    end = threading.Event()
    threading.Thread(target=look, args=(world, end), daemon=True).start()
    wait_for(lambda: world.stuck)
    end.set()
    may_end.set()
    assert "after its cancel" in world.stuck[0]


@pytest.mark.slow
def test_failed_shared_job_is_repeated_batch_by_batch(world: World) -> None:
    """A batch that breaks Spark's worker fails alone; the others do not even report a failure."""
    may_go = threading.Event()
    blockers = [ScriptedPipeline(world.spec, lambda _: waited(may_go)) for _ in range(2)]
    for number, blocker in enumerate(blockers):
        world.append(world.run(number, blocker), 1)
    wait_for(lambda: world.engine.at_once == 2)

    def break_all(_ranges: Sequence[Range]) -> None:
        raise BreakingError("out of memory")

    breaking = world.run(2, ScriptedPipeline(world.spec, break_all, shareable=True))
    others = [world.run(n, ScriptedPipeline(world.spec, shareable=True)) for n in range(3, 9)]
    for journal in [breaking, *others]:
        world.append(journal, 10)
    time.sleep(0.5)
    may_go.set()
    wait_for(lambda: all(world.ack(journal) == 10 for journal in others))
    wait_for(lambda: world.last(2).state == "failed")
    assert max(world.engine.jobs) > 1
    assert all(world.last(number).state == "running" for number in range(3, 9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "states"),
    [
        (UnavailableError("refused"), ["running", "retrying", "running"]),
        (CutShortError("others hang"), ["running"]),
    ],
)
def test_task_whose_batch_kept_others_waiting_shares_no_job_with_them_until_it_commits(
    world: World, error: Exception, states: list[str]
) -> None:
    """It runs with other failing ones, and not alone as one that hangs."""
    tries = []

    def fail_at_first(ranges: Sequence[Range]) -> None:
        tries.append(ranges)
        if len(tries) == 1:
            raise error

    journal = world.run(0, ScriptedPipeline(world.spec, fail_at_first, shareable=True))
    for end in (10, 20):
        world.append(journal, 10)
        wait_for(lambda: world.ack(journal) == end)  # noqa: B023
    first, second, third = world.engine.slots
    assert second == "job-failing"
    assert {first, third} <= {"job-0", "job-1"}
    assert [status.state for status in world.statuses["web/collect.0"]] == states
    assert world.engine.apart == [False] * 3


def test_long_errors_are_truncated(world: World) -> None:
    def fail(_ranges: Sequence[Range]) -> None:
        raise OSError("x" * 100_000)

    world.append(world.run(0, ScriptedPipeline(world.spec, fail)), 1)
    wait_for(lambda: world.statuses and world.last(0).state == "failed")
    assert len(str(world.last(0).error)) == ERROR_CHARACTERS
