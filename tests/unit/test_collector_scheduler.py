"""Many tasks on few threads: what idles costs nothing, what hangs or fails harms only itself."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from flumeng.collector.jobs import APART_SLOTS, Jobs
from flumeng.collector.positions import Reach
from flumeng.collector.publisher import Publisher
from flumeng.collector.ranges import Range
from flumeng.collector.runner import ERROR_CHARACTERS, Runner, Status, Surroundings
from flumeng.collector.scheduler import Scheduler
from flumeng.collector.slots import (
    SHARED_EVENTS,
    SHARED_MEMBERS,
    SMALL_EVENTS,
    Request,
    SharedSize,
    Slots,
)
from flumeng.collector.task import Assignment
from flumeng.collector.testing import BreakingError, ScriptedEngine, ScriptedPipeline, register
from flumeng.collector.threads import Threads
from flumeng.spec import FlowSpec, parse_flow
from flumeng.store import ABSENT, tree
from flumeng.testing import FakeStore
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN, flow_folders
from zkschema.records import Flow

TASKS = 1000
PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def spec() -> FlowSpec:
    return parse_flow(
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
        "batch: {seconds: 0.0, events: 100}, sinks: [noop]}"
    )


@dataclass
class World:
    """Tasks of one flow, each with a journal of its own. ``safe``: how far those reach."""

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
        self.spec = spec()
        tree.init(self.store)
        self.store.write(paths.flow("web"), Flow(revision=1), ABSENT)
        for folder in flow_folders("web"):
            self.store.write(folder, None, ABSENT)

    def run(self, number: int, pipeline: ScriptedPipeline) -> str:
        """Start task ``number``; gives its journal."""
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
            hang_seconds=self.hang_seconds,
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
class Ends:
    """The journals' ends, as one task asks for them. ``on_change`` tells of each move."""

    world: World
    on_change: Callable[[], None]

    def of(self, journals: Iterable[str]) -> dict[str, Reach]:
        wanted = list(journals)
        self.world.changed |= dict.fromkeys(wanted, self.on_change)
        return {name: Reach("", self.world.safe[name]) for name in wanted}

    def refresh(self, journals: Iterable[str]) -> None: ...

    def probe(self, journal: str, address: str, start: int, end: int) -> Future[None]:
        raise NotImplementedError

    def close(self) -> None: ...


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


def test_a_thousand_idle_tasks_take_no_turns_and_a_bounded_number_of_threads(world: World) -> None:
    before = threading.active_count()
    journals = [world.run(number, ScriptedPipeline(world.spec)) for number in range(TASKS)]
    until(lambda: len(world.statuses) == TASKS)
    time.sleep(0.5)
    turns = world.scheduler.turns
    time.sleep(1.0)
    assert world.scheduler.turns == turns
    assert threading.active_count() - before < 100
    world.append(journals[7], 3)
    until(lambda: world.ack(journals[7]) == 3)
    assert world.scheduler.turns - turns < 10


def test_a_thousand_busy_tasks_share_jobs_of_which_few_run_at_once(world: World) -> None:
    def take_long(_ranges: Sequence[Range]) -> None:
        time.sleep(0.0005)

    pipelines = [ScriptedPipeline(world.spec, take_long, shareable=True) for _ in range(TASKS)]
    journals = [world.run(number, pipeline) for number, pipeline in enumerate(pipelines)]
    until(lambda: len(world.statuses) == TASKS)
    for _ in range(3):
        for journal in journals:
            world.append(journal, 10)
    until(lambda: all(world.ack(journal) == 30 for journal in journals))
    assert world.engine.most_at_once <= 2 + APART_SLOTS
    assert len(world.engine.jobs) < TASKS / 4, "most of them shared"
    assert max(world.engine.jobs) <= SHARED_MEMBERS


def test_batches_grow_while_slots_are_scarce(world: World) -> None:
    may_go = threading.Event()
    blockers = [ScriptedPipeline(world.spec, lambda _: waited(may_go)) for _ in range(2)]
    for number, pipeline in enumerate(blockers):
        world.append(world.run(number, pipeline), 1)
    until(lambda: world.engine.at_once == 2)
    pipeline = ScriptedPipeline(world.spec)
    journal = world.run(2, pipeline)
    for _ in range(5):
        world.append(journal, 10)
        time.sleep(0.05)
    assert pipeline.batches == []
    may_go.set()
    until(lambda: world.ack(journal) == 50)
    assert pipeline.batches == [(Range(journal, 0, 50),)]


@pytest.mark.parametrize("hang_seconds", [0.3])
def test_a_batch_that_hangs_is_given_up_told_and_begun_anew_and_harms_nobody_else(
    world: World,
) -> None:
    may_end = threading.Event()
    tries = []

    def hang_at_first(ranges: Sequence[Range]) -> None:
        tries.append(ranges)
        if len(tries) <= 2:
            may_end.wait(PATIENCE_SECONDS)

    hanging = world.run(0, ScriptedPipeline(world.spec, hang_at_first, shareable=True))
    others = [world.run(n, ScriptedPipeline(world.spec, shareable=True)) for n in range(1, 20)]
    until(lambda: len(world.statuses) == 20)
    world.append(hanging, 10)
    until(lambda: tries)
    for journal in others:
        world.append(journal, 10)
    until(lambda: all(world.ack(journal) == 10 for journal in others))
    looking = threading.Event()
    threading.Thread(target=look, args=(world, looking), daemon=True).start()
    until(lambda: world.last(0).state == "failed")
    assert "hung: no end after" in str(world.last(0).error)
    until(lambda: len(tries) == 2)
    assert world.ack(hanging) == 0
    until(lambda: len(world.engine.cancelled) == 2)
    may_end.set()
    until(lambda: world.ack(hanging) == 10)
    until(lambda: world.last(0).state == "running")
    assert all(world.statuses[f"web/collect.{n}"] == [world.last(n)] for n in range(1, 20))
    looking.set()


def look(world: World, end: threading.Event) -> None:
    while not end.wait(0.02):
        world.jobs.look()
        world.scheduler.look()


@pytest.mark.parametrize("hang_seconds", [0.3])
def test_an_engine_that_does_not_end_what_was_cancelled_is_told_of(
    world: World,
) -> None:
    may_end = threading.Event()
    journal = world.run(0, ScriptedPipeline(world.spec, lambda _: waited(may_end)))
    world.append(journal, 10)
    until(lambda: world.engine.at_once)
    end = threading.Event()
    threading.Thread(target=look, args=(world, end), daemon=True).start()
    until(lambda: world.stuck)
    end.set()
    may_end.set()
    assert "was cancelled" in world.stuck[0]


def waited(event: threading.Event) -> None:
    event.wait(PATIENCE_SECONDS)


def test_a_job_that_breaks_down_is_tried_anew_batch_by_batch(world: World) -> None:
    """Who breaks Spark's worker fails alone; the others do not even say that they failed."""
    may_go = threading.Event()
    blockers = [ScriptedPipeline(world.spec, lambda _: waited(may_go)) for _ in range(2)]
    for number, blocker in enumerate(blockers):
        world.append(world.run(number, blocker), 1)
    until(lambda: world.engine.at_once == 2)

    def break_all(_ranges: Sequence[Range]) -> None:
        raise BreakingError("out of memory")

    breaking = world.run(2, ScriptedPipeline(world.spec, break_all, shareable=True))
    others = [world.run(n, ScriptedPipeline(world.spec, shareable=True)) for n in range(3, 9)]
    for journal in [breaking, *others]:
        world.append(journal, 10)
    time.sleep(0.5)
    may_go.set()
    until(lambda: all(world.ack(journal) == 10 for journal in others))
    until(lambda: world.last(2).state == "failed")
    assert max(world.engine.jobs) > 1
    assert all(world.last(number).state == "running" for number in range(3, 9))


def test_errors_are_cut(world: World) -> None:
    def fail(_ranges: Sequence[Range]) -> None:
        raise OSError("x" * 100_000)

    world.append(world.run(0, ScriptedPipeline(world.spec, fail)), 1)
    until(lambda: world.statuses and world.last(0).state == "failed")
    assert len(str(world.last(0).error)) == ERROR_CHARACTERS


def request(flow: str, events: int = 10, *, task: int = 0, **changes: Any) -> Request:
    return Request(flow, f"{flow}/collect.{task}", events, **{"shareable": True, **changes})


def keys(requests: Sequence[Request]) -> list[str]:
    return [each.key for each in requests]


def test_flows_take_turns_however_many_tasks_they_have() -> None:
    slots = Slots()
    for task in range(3):
        slots.ask(request("many", task=task, shareable=False))
    slots.ask(request("one", shareable=False))
    said = [keys(slots.next(apart=False)) for _ in range(4)]
    assert said == [["many/collect.0"], ["one/collect.0"], ["many/collect.1"], ["many/collect.2"]]
    assert slots.next(apart=False) == []


def test_a_flow_that_wants_small_batches_waits_less_and_no_flow_for_ever() -> None:
    now = [0.0]
    slots = Slots(clock=lambda: now[0])
    slots.ask(request("patient", shareable=False, gather_seconds=2.0))
    now[0] = 0.1
    slots.ask(request("hasty", shareable=False, gather_seconds=0.2))
    now[0] = 0.2
    assert keys(slots.next(apart=False)) == ["hasty/collect.0"], "half of 0.2 s, a tenth of 2 s"
    turns = 0
    said: list[str] = []
    while "patient/collect.0" not in said:
        turns += 1
        slots.ask(request("hasty", shareable=False, gather_seconds=0.001))
        now[0] += 0.2
        said = keys(slots.next(apart=False))
        slots.withdraw("hasty/collect.0")
    assert 8 <= turns <= 11, "however hasty the other one is"


def test_small_batches_go_together_and_large_ones_and_sql_alone() -> None:
    slots = Slots()
    slots.ask(request("a"))
    slots.ask(request("large", SMALL_EVENTS + 1))
    slots.ask(request("sql", shareable=False))
    slots.ask(request("b"))
    said = [keys(slots.next(apart=False)) for _ in range(3)]
    assert said == [["a/collect.0", "b/collect.0"], ["large/collect.0"], ["sql/collect.0"]]


def test_a_shared_job_is_bounded_in_batches_and_in_events() -> None:
    slots = Slots()
    for number in range(2 * SHARED_MEMBERS):
        slots.ask(request(f"f{number}"))
    assert len(slots.next(apart=False)) == SHARED_MEMBERS
    slots = Slots()
    for number in range(SHARED_MEMBERS):
        slots.ask(request(f"f{number}", SMALL_EVENTS))
    assert sum(each.events for each in slots.next(apart=False)) <= SHARED_EVENTS


def test_who_is_apart_waits_for_slots_of_its_own() -> None:
    slots = Slots()
    slots.ask(request("a", apart=True))
    slots.ask(request("b", apart=True))
    assert slots.next(apart=False) == []
    assert keys(slots.next(apart=True)) == ["a/collect.0"]
    assert slots.withdraw("b/collect.0")
    assert not slots.withdraw("b/collect.0")
    assert slots.next(apart=True) == []


def test_a_thread_that_hangs_is_replaced_and_told_of_once() -> None:
    threads = Threads("test", 1, limit_seconds=0.05)
    may_end, done = threading.Event(), threading.Event()
    told: list[float] = []
    threads.submit(lambda: waited(may_end), told.append)
    threads.submit(done.set, told.append)
    time.sleep(0.1)
    assert not done.is_set()
    threads.look()
    threads.look()
    assert done.wait(PATIENCE_SECONDS)
    assert len(told) == 1
    may_end.set()


def test_a_shared_job_takes_as_long_as_it_may() -> None:
    size = SharedSize()
    size.measured(10, 0.1, 0.3)
    assert size.members == SHARED_MEMBERS, "a job that was not full and short says nothing"
    for _ in range(9):
        size.measured(size.members, size.members * 0.03, 0.3)
    assert size.members == 10, "0.3 s for batches of 0.03 s each"
    size.measured(10, 60.0, 0.3)
    size.measured(size.members, 60.0, 0.3)
    assert size.members == SharedSize.LEAST
    for _ in range(9):
        size.measured(size.members, size.members * 0.001, 0.3)
    assert size.members == SHARED_MEMBERS


def test_a_shared_job_is_soon_over_unless_very_much_waits() -> None:
    now = [0.0]
    slots = Slots(clock=lambda: now[0])

    def members(jobs: int) -> int:
        """Of the last of so many jobs, in which a batch takes 0.03 s."""
        count = 0
        for _ in range(jobs):
            count = len(chosen := slots.next(apart=False))
            slots.measured(count, count * 0.03)
            for each in chosen:
                slots.ask(each)
        return count

    for number in range(200):
        slots.ask(request(f"f{number}"))
    assert members(9) == 10, "0.3 s"
    now[0] = 20.0
    assert members(4) == 66, "a tenth of the 20 s for which others have waited"
