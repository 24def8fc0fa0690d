"""Many tasks on few threads: what idles costs nothing, what hangs or fails harms only itself."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from flumeng.collector.jobs import APART_SLOTS, Jobs
from flumeng.collector.publisher import Publisher
from flumeng.collector.runner import ERROR_CHARACTERS, Runner, Status, Surroundings
from flumeng.collector.scheduler import Scheduler
from flumeng.collector.slots import (
    SHARED_EVENTS,
    SHARED_MEMBERS,
    SMALL_EVENTS,
    Request,
    SharedSize,
    Slots,
    bounds,
)
from flumeng.collector.starts import STARTS_AT_ONCE, Starts
from flumeng.collector.task import Assignment
from flumeng.collector.testing import (
    BreakingError,
    ScriptedEngine,
    ScriptedPipeline,
    StillPositions,
    register,
)
from flumeng.collector.threads import Threads
from flumeng.collector.work import Work
from flumeng.inputs import Range, Reach
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
        batch = replace(spec().batch, timeout_seconds=self.hang_seconds)
        self.spec = replace(spec(), batch=batch)
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
    """The journals' ends, as one task asks for them. ``on_change`` tells of each move."""

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


def test_batches_of_a_shared_job_are_small_however_much_they_have_grown(world: World) -> None:
    world.spec = replace(world.spec, batch=replace(world.spec.batch, events=1_000_000))
    may_go = threading.Event()
    blockers = [ScriptedPipeline(world.spec, lambda _: waited(may_go)) for _ in range(2)]
    for number, pipeline in enumerate(blockers):
        world.append(world.run(number, pipeline), 1)
    until(lambda: world.engine.at_once == 2)
    pipelines = [ScriptedPipeline(world.spec, shareable=True) for _ in range(12)]
    journals = [world.run(number, pipeline) for number, pipeline in enumerate(pipelines, 2)]
    for journal in journals:
        world.append(journal, 1)
    until(lambda: world.jobs.load[1] == 12)
    for journal in journals:
        world.append(journal, 50_000)
    may_go.set()
    until(lambda: all(world.ack(journal) == 50_001 for journal in journals))
    assert max(world.engine.jobs) > 10
    assert max(world.engine.events[n] for n, of in enumerate(world.engine.jobs) if of > 1) <= (
        SHARED_EVENTS
    )


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


@pytest.mark.parametrize("hang_seconds", [0.3])
def test_what_is_behind_a_batch_that_hangs_is_given_up_with_it(world: World) -> None:
    """It is written, and nothing of it is acked before what comes before it is."""
    may_end = threading.Event()
    tries: list[tuple[int, int]] = []

    def hang_at_first(ranges: Sequence[Range]) -> None:
        (piece,) = ranges
        tries.append((piece.start, piece.end))
        if len(tries) == 1:
            may_end.wait(PATIENCE_SECONDS)

    looking = threading.Event()
    threading.Thread(target=look, args=(world, looking), daemon=True).start()
    world.safe["web.n0.0.00000000"] = 200
    journal = world.run(0, ScriptedPipeline(world.spec, hang_at_first))
    until(lambda: "failed" in [status.state for status in world.statuses.get("web/collect.0", ())])
    assert tries[:2] == [(0, 100), (100, 200)]
    assert world.ack(journal) == 0
    until(lambda: world.ack(journal) == 200)
    assert sorted(tries[2:]) == [(0, 100), (100, 200)]
    may_end.set()
    looking.set()


def test_a_batch_with_less_time_than_others_shares_no_job(world: World) -> None:
    """Or what gives it up would give up theirs."""
    hasty = replace(world.spec, batch=replace(world.spec.batch, timeout_seconds=1.0))
    may_go = threading.Event()
    for number in range(2):
        blocker = ScriptedPipeline(world.spec, lambda _: waited(may_go))
        world.append(world.run(number, blocker), 1)
    until(lambda: world.engine.at_once == 2)
    journals = [
        world.run(n, ScriptedPipeline(hasty if n == 5 else world.spec, shareable=True))
        for n in range(2, 8)
    ]
    for journal in journals:
        world.append(journal, 10)
    time.sleep(0.5)
    may_go.set()
    until(lambda: all(world.ack(journal) == 10 for journal in journals))
    assert sorted(world.engine.jobs) == [1, 1, 1, 5]


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


@dataclass(eq=False)
class Asker:
    """Who asks for a slot under that name. Takes ``seconds`` to begin; notes what it may hold."""

    name: str
    seconds: float = 0.0
    may_begin: threading.Event | None = None
    bounds: list[int | None] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)

    def begin(self, most_events: int | None) -> Work | None:
        self.bounds.append(most_events)
        if self.may_begin is not None:
            waited(self.may_begin)
        time.sleep(self.seconds)
        pipeline = ScriptedPipeline(spec(), shareable=True)
        self.works.append(Work(pipeline, (), {}, {}, PATIENCE_SECONDS, lambda _: None))
        return self.works[-1]


def request(flow: str, events: int = 10, *, task: int = 0, **changes: Any) -> Request:
    asker = Asker(f"{flow}/collect.{task}")
    return Request(flow, asker, events, **{"shareable": True, **changes})


def keys(requests: Sequence[Request]) -> list[str]:
    return [each.member.name for each in requests if isinstance(each.member, Asker)]


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
        hasty = request("hasty", shareable=False, gather_seconds=0.001)
        slots.ask(hasty)
        now[0] += 0.2
        said = keys(slots.next(apart=False))
        slots.withdraw(hasty)
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
    slots.ask(b := request("b", apart=True))
    assert slots.next(apart=False) == []
    assert keys(slots.next(apart=True)) == ["a/collect.0"]
    assert slots.withdraw(b)
    assert not slots.withdraw(b)
    assert slots.next(apart=True) == []


def test_who_has_grown_since_it_asked_gets_its_part_of_a_shared_job() -> None:
    for events, members in ((10, 128), (SMALL_EVENTS, 10), (1, 3)):
        most = bounds([request(f"f{number}", events) for number in range(members)])
        assert all(each is not None and events <= each <= SMALL_EVENTS for each in most)
        assert sum(each or 0 for each in most) <= SHARED_EVENTS
    assert bounds([request("alone")]) == [None]


def test_two_of_one_name_wait_each_for_itself() -> None:
    """A task that is given back soon after it was taken away waits beside its former self."""
    slots = Slots()
    before, after = request("a"), request("a")
    slots.ask(before)
    slots.ask(after)
    assert slots.withdraw(before)
    assert slots.next(apart=False) == [after]


def test_who_is_reached_by_no_thread_has_not_begun_and_nobody_is_late() -> None:
    """Each batch has its time from when a thread takes it."""
    late: list[Work] = []
    starts = Starts(late.append, start_seconds=0.5)
    askers = [Asker(str(number), seconds=0.2) for number in range(100)]
    works, unreached = starts.begin([Request("f", asker, 1, shareable=True) for asker in askers])
    begun = [asker for asker in askers if asker.works]
    assert works == [asker.works[0] for asker in begun]
    assert [each.member for each in unreached] == [each for each in askers if each not in begun]
    time.sleep(0.5)
    assert late == []
    assert STARTS_AT_ONCE <= len(begun) == sum(len(asker.bounds) for asker in askers) < 40


def test_a_batch_that_is_late_to_begin_is_written_apart_and_not_thrown_away() -> None:
    """Its acks may have moved already."""
    engine = ScriptedEngine()
    jobs = Jobs(engine, 1, on_stuck=pytest.fail, start_seconds=0.3)
    may_begin = threading.Event()
    askers = [Asker("late", may_begin=may_begin), *(Asker(str(number)) for number in range(3))]
    for asker in askers:
        jobs.ask(Request("f", asker, 1, shareable=True))
    until(lambda: sum(engine.jobs) == 3)
    may_begin.set()
    until(lambda: sum(engine.jobs) == 4)
    assert [len(asker.bounds) for asker in askers] == [1, 1, 1, 1]


def test_a_shared_job_is_as_large_as_its_batches_can_begin_in_time() -> None:
    engine = ScriptedEngine()
    jobs = Jobs(engine, 1, on_stuck=pytest.fail)
    for turn in range(1, 5):
        before = len(engine.jobs)
        for number in range(100):
            asker = Asker(str(number), seconds=0.05)
            jobs.ask(Request(asker.name, asker, 1, shareable=True))
        until(lambda: sum(engine.jobs) == 100 * turn)  # noqa: B023
    assert max(engine.jobs[before:]) <= 60, "8 begin at once, in 0.05 s, and 0.3 s are allowed"


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
