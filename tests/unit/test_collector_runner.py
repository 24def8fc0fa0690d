"""One task's thread: what it reports, when a batch runs, and what it does about failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from flumeng.collector.acks import Acks
from flumeng.collector.jobs import Jobs
from flumeng.collector.measures import Measures
from flumeng.collector.publisher import Publisher
from flumeng.collector.ranges import BatchSize
from flumeng.collector.runner import ERROR_CHARACTERS, Runner, Status, Surroundings
from flumeng.collector.scheduler import Scheduler
from flumeng.collector.slots import SMALL_EVENTS
from flumeng.collector.task import Assignment, Task
from flumeng.collector.task_counts import COUNTED
from flumeng.collector.testing import (
    Restless,
    ScriptedEngine,
    ScriptedPipeline,
    StillPositions,
    register,
)
from flumeng.collector.work import Filtered
from flumeng.errors import UnavailableError, UserError
from flumeng.inputs import Range, Reach
from flumeng.metrics import table
from flumeng.runtime.scrubbing import Secret
from flumeng.sinks import BatchTooWideError, Written
from flumeng.spec import FlowSpec, parse_flow
from flumeng.store import ABSENT, Version, Write, tree
from flumeng.testing import FakeStore
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN, flow_folders
from zkschema.records import Flow, Intent, Revision

JOURNAL = "web.n1.0.00000000"
PATIENCE_SECONDS = 60.0


def spec(delivery: str = "at-least-once", seconds: float = 0.0) -> FlowSpec:
    return parse_flow(
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
        f"delivery: {delivery}, batch: {{seconds: {seconds}, events: 100}}, sinks: [noop]}}"
    )


def once() -> FlowSpec:
    return parse_flow(
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], delivery: exactly-once, "
        "batch: {seconds: 0, events: 100}, sinks: [files: {path: /lake}]}"
    )


class LossyStore(FakeStore):
    """Nobody hears the reply to transaction number ``lost``, counted from 1. ``before_acks`` is
    called before acks are read."""

    commits = 0
    lost = 0
    before_acks: Callable[[], object] | None = None

    def read_many(self, wanted: Sequence[Any]) -> list[Any]:
        if self.before_acks is not None and any("/acks/" in str(path) for path in wanted):
            self.before_acks()
        return super().read_many(wanted)

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        versions = super().commit(writes)
        self.commits += 1
        if self.commits == self.lost:
            raise UnavailableError("ConnectionLoss")
        return versions


@dataclass
class World(StillPositions):
    safe: dict[str, int] = field(default_factory=lambda: {JOURNAL: 0})
    closed: set[str] = field(default_factory=set)
    store: LossyStore = field(default_factory=LossyStore)
    statuses: list[Status] = field(default_factory=list)
    runners: list[Runner] = field(default_factory=list)
    scheduler: Scheduler = field(default_factory=Scheduler)
    measures: Measures = field(default_factory=Measures)
    jobs: Jobs = field(default_factory=lambda: Jobs(ScriptedEngine(), 2, on_stuck=pytest.fail))
    opened: list[FlowSpec] = field(default_factory=list)

    def open(self, spec: FlowSpec) -> None:
        self.opened.append(spec)

    def __post_init__(self) -> None:
        self.store.on_session(lambda _: self.scheduler.wake_all())
        tree.init(self.store)
        self.store.write(paths.flow("web"), Flow(revision=1), ABSENT)
        for folder in flow_folders("web"):
            self.store.write(folder, None, ABSENT)
        register(self.store, "web", JOURNAL)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {
            name: Reach("", self.safe[name], closed=name in self.closed)
            for name in partitions
            if name in self.safe
        }

    def run(
        self,
        pipeline: ScriptedPipeline,
        epoch: int = 1,
        report: Callable[[str, Status], None] | None = None,
        handoff: int = 0,
    ) -> Runner:
        return self.run_built(lambda _: pipeline, epoch, report, handoff)

    def run_built(
        self,
        build: Callable[[Assignment], ScriptedPipeline],
        epoch: int = 1,
        report: Callable[[str, Status], None] | None = None,
        handoff: int = 0,
    ) -> Runner:
        around = Surroundings(
            store=self.store,
            publisher=Publisher(self.store),
            scheduler=self.scheduler,
            jobs=self.jobs,
            build=build,
            positions=lambda wake: Restless(self, wake),
            report=report or self.report,
            measures=self.measures,
        )
        runner = Runner(replace(assignment(epoch), handoff=handoff), around)
        self.runners.append(runner)
        runner.start()
        return runner

    def report(self, _key: str, status: Status) -> None:
        self.statuses.append(status)

    def ack(self) -> int:
        found = self.store.read(paths.ack("web", CURSOR_MAIN, JOURNAL))
        return found.value.offset if found else 0

    def counted(self, wanted: table.Metric) -> dict[tuple[str, ...], object]:
        readings = self.measures.readings()
        return {labels: value for metric, value, labels in readings if metric is wanted}

    def states(self) -> list[str]:
        return [status.state for status in self.statuses]


def assignment(epoch: int = 1) -> Assignment:
    return Assignment("web", "collect.0", epoch, 1, "", (JOURNAL,))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for runner in world.runners:
        runner.cancel()
        assert runner.join(PATIENCE_SECONDS)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_what_is_in_closed_journals_does_not_wait_for_more(world: World) -> None:
    world.run(ScriptedPipeline(spec(seconds=86_400.0)))
    world.safe[JOURNAL] = 30
    time.sleep(0.5)
    assert world.ack() == 0
    world.closed.add(JOURNAL)
    until(lambda: world.ack() == 30)


def test_batches_run_and_one_status_is_said(world: World) -> None:
    pipeline = ScriptedPipeline(spec())
    world.safe[JOURNAL] = 250
    world.run(pipeline)
    until(lambda: world.ack() == 250)
    assert sorted(pipeline.batches, key=lambda batch: batch[0].start) == [
        (Range(JOURNAL, 0, 100),),
        (Range(JOURNAL, 100, 200),),
        (Range(JOURNAL, 200, 250),),
    ]
    assert world.statuses == [Status(1, 1, "running", None, (JOURNAL,))]
    until(lambda: world.counted(table.COLLECT_EVENTS) == {("web",): 250})
    assert world.counted(table.COLLECT_BATCHES) == {("web",): 3}
    assert world.counted(table.COLLECT_FAILURES) == {}
    world.measures.keep(["another"])
    assert world.counted(table.COLLECT_EVENTS) == {}


def test_what_became_of_the_events_of_committed_batches_is_counted_by_task(world: World) -> None:
    """A claim under another epoch counts anew; one that begins anew after a failure goes on."""
    fail = iter((False, True))

    def fail_once(_: Sequence[Range]) -> None:
        if next(fail, False):
            raise UnavailableError("the lake is away")

    pipeline = ScriptedPipeline(spec(), fail_once, made=Filtered(dropped=None, parse_errors=3))
    world.safe[JOURNAL] = 100
    world.run(pipeline)

    def minute() -> list[tuple[int | None, ...]]:
        found = [(row["epoch"], row["counts"]) for row in world.measures.tasks.rows()]
        return [
            (epoch, *(counts[name] and counts[name]["1m"] for name in COUNTED))
            for epoch, counts in found
        ]

    until(lambda: minute() == [(1, 100, None, 3, 0)])
    world.safe[JOURNAL] = 200
    until(lambda: minute() == [(1, 200, None, 6, 0)])
    world.runners[0].assign(assignment(2))
    until(lambda: minute() == [(2, 0, 0, 0, 0)])


def test_acks_keep_the_order_of_batches_that_finish_out_of_order(world: World) -> None:
    first_may_end = threading.Event()

    def wait(ranges: Sequence[Range]) -> None:
        if ranges[0].start == 0:
            assert first_may_end.wait(PATIENCE_SECONDS)

    pipeline = ScriptedPipeline(spec(), wait)
    world.safe[JOURNAL] = 200
    world.run(pipeline)
    until(lambda: pipeline.batches == [(Range(JOURNAL, 100, 200),)])
    assert world.ack() == 0
    first_may_end.set()
    until(lambda: world.ack() == 200)


def test_a_failed_batch_is_said_once_and_tried_again_from_the_ack(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def fail_twice(ranges: Sequence[Range]) -> None:
        tries.append(ranges)
        if len(tries) <= 2:
            raise OSError("disk on fire")

    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(spec(), fail_twice))
    until(lambda: world.ack() == 10)
    until(lambda: world.states()[-1] == "running")
    assert world.states() == ["running", "failed", "running"]
    assert world.statuses[1].error == "disk on fire"
    assert world.statuses[1].partitions == ()
    assert caplog.text.count("disk on fire") == 1
    assert world.counted(table.COLLECT_FAILURES) == {("web", "failed"): 2}


def test_a_task_that_fails_three_times_in_a_row_is_unhealthy_until_all_is_delivered(
    world: World,
) -> None:
    tries = []

    def fail_thrice(ranges: Sequence[Range]) -> None:
        tries.append(ranges)
        if len(tries) <= 3:
            raise OSError("disk on fire")

    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(spec(), fail_thrice))
    until(lambda: world.ack() == 10)
    until(lambda: (world.states()[-1], world.statuses[-1].health) == ("running", ""))
    health = [one.health for one in world.statuses if one.state == "failed"]
    assert health == ["", "unhealthy"], "the second failure was said with the first"


def test_a_batch_behind_a_failed_one_is_not_acked(world: World) -> None:
    second_is_written = threading.Event()

    def fail_first(ranges: Sequence[Range]) -> None:
        if ranges[0].start == 0:
            assert second_is_written.wait(PATIENCE_SECONDS)
            raise OSError("no")
        second_is_written.set()

    world.safe[JOURNAL] = 200
    world.run(ScriptedPipeline(spec(), fail_first))
    until(lambda: "failed" in world.states())
    assert world.ack() == 0


def test_a_batch_that_is_too_wide_becomes_smaller_and_is_no_failure(world: World) -> None:
    def refuse_wide(ranges: Sequence[Range]) -> None:
        if sum(piece.events for piece in ranges) > BatchSize.LEAST:
            raise BatchTooWideError("too many files")

    wide = replace(spec(), batch=replace(spec().batch, events=3 * BatchSize.LEAST))
    world.safe[JOURNAL] = 10 * BatchSize.LEAST
    world.run(ScriptedPipeline(wide, refuse_wide))
    until(lambda: world.ack() == 10 * BatchSize.LEAST)
    assert world.states() == ["running"]


def test_being_fenced_ends_the_work_until_something_else_is_wanted(world: World) -> None:
    runner = world.run(ScriptedPipeline(spec()))
    until(lambda: world.states() == ["running"])
    Acks.claim(world.store, Publisher(world.store), "web", 2, [JOURNAL])
    world.safe[JOURNAL] = 10
    until(lambda: world.states()[-1] == "stopped")
    assert world.statuses[-1] == Status(1, 1, "stopped", "superseded", (), epoch_seen=2)
    time.sleep(0.3)
    assert (world.ack(), world.states()) == (0, ["running", "stopped"])
    runner.assign(assignment(3))
    until(lambda: world.states()[-1] == "running")
    assert world.statuses[-1].epoch == 3


def test_a_twin_under_the_same_epoch_that_ends_does_not_end_the_work(world: World) -> None:
    """A collector whose node was restarted may claim once more before it notices."""
    pipeline = ScriptedPipeline(spec())
    world.run(pipeline)
    until(lambda: world.states() == ["running"])
    Acks.claim(world.store, Publisher(world.store), "web", 1, [JOURNAL])
    world.safe[JOURNAL] = 10
    until(lambda: world.ack() == 10)
    assert world.states() == ["running"]


@pytest.mark.parametrize("lost", range(1, 5))
def test_an_owner_recognises_its_own_write_whose_reply_was_lost(world: World, lost: int) -> None:
    """The claim is the first write, then come two batches."""
    world.store.lost = world.store.commits + lost
    world.safe[JOURNAL] = 200
    world.run(ScriptedPipeline(spec()))
    until(lambda: world.ack() == 200)
    world.safe[JOURNAL] = 250
    until(lambda: world.ack() == 250)
    assert world.store.commits >= world.store.lost
    assert world.states() == ["running"]


def test_a_draining_task_finishes_what_runs_and_lets_go(world: World) -> None:
    may_end = threading.Event()
    started = threading.Event()

    def wait(_ranges: Sequence[Range]) -> None:
        started.set()
        assert may_end.wait(PATIENCE_SECONDS)

    world.safe[JOURNAL] = 10
    runner = world.run(ScriptedPipeline(spec(), wait))
    assert started.wait(PATIENCE_SECONDS)
    runner.assign(replace(assignment(), draining=True))
    time.sleep(0.2)
    assert world.states() == ["running"]
    world.safe[JOURNAL] = 20
    may_end.set()
    until(lambda: world.states()[-1] == "stopped")
    assert (world.ack(), world.statuses[-1].error) == (10, None)


def test_a_small_batch_waits_until_it_is_old_enough_unless_the_process_stops(world: World) -> None:
    pipeline = ScriptedPipeline(spec(seconds=3600.0))
    world.safe[JOURNAL] = 99
    runner = world.run(pipeline)
    time.sleep(0.3)
    assert pipeline.batches == []
    world.safe[JOURNAL] = 100
    until(lambda: world.ack() == 100)
    world.safe[JOURNAL] = 101
    time.sleep(0.3)
    assert world.ack() == 100
    runner.drain()
    assert runner.join(PATIENCE_SECONDS)
    assert world.ack() == 101


def test_a_handoff_delivers_what_has_come_once_in_as_many_batches_as_it_takes(
    world: World,
) -> None:
    pipeline = ScriptedPipeline(spec(seconds=3600.0))
    world.safe[JOURNAL] = 40
    runner = world.run(pipeline)
    time.sleep(0.3)
    assert pipeline.batches == []
    runner.assign(replace(assignment(), handoff=1))
    until(lambda: world.ack() == 40)
    world.safe[JOURNAL] = 50
    time.sleep(0.3)
    assert world.ack() == 40, "what comes later gathers as ever"
    runner.assign(replace(assignment(), handoff=1))
    time.sleep(0.3)
    assert world.ack() == 40, "one number is one handoff"
    world.safe[JOURNAL] = 40 + 230
    runner.assign(replace(assignment(), handoff=2))
    until(lambda: world.ack() == 270)
    assert world.states() == ["running"], "nothing was claimed anew"


def test_a_handoff_is_gone_on_with_when_a_batch_of_it_fails(world: World) -> None:
    failures = [UnavailableError("away"), UnavailableError("away")]

    def fail(ranges: Sequence[Range]) -> None:
        if ranges[0].start > 0 and failures:
            raise failures.pop()

    runner = world.run(ScriptedPipeline(spec(seconds=3600.0), fail))
    until(lambda: world.states() == ["running"])
    world.safe[JOURNAL] = 150
    runner.assign(replace(assignment(), handoff=1))
    until(lambda: world.ack() == 150)
    assert failures == []


def test_a_task_that_begins_after_a_handoff_was_asked_for_delivers_it(world: World) -> None:
    world.safe[JOURNAL] = 40
    world.run(ScriptedPipeline(spec(seconds=3600.0)), handoff=3)
    until(lambda: world.ack() == 40)


def test_a_handoff_waits_for_a_partition_that_cannot_be_reached(world: World) -> None:
    end = world.safe.pop(JOURNAL)
    runner = world.run(ScriptedPipeline(spec(seconds=3600.0)))
    runner.assign(replace(assignment(), handoff=1))
    time.sleep(0.3)
    world.safe[JOURNAL] = end + 5
    until(lambda: world.ack() == 5)


def test_a_batch_that_has_its_bytes_waits_no_longer(world: World) -> None:
    """And is cut where it has them, by what events weighed before."""
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop], "
        "batch: {seconds: 3600, bytes: 102400}}"
    )
    pipeline = ScriptedPipeline(parse_flow(text), event_size=10_240.0)
    world.safe[JOURNAL] = 99
    world.run(pipeline)
    time.sleep(0.3)
    assert pipeline.batches == [], "an event is taken to have a KiB"
    world.safe[JOURNAL] = 125
    until(lambda: world.ack() == 120)
    assert [piece.events for batch in pipeline.batches for piece in batch] == [100, 10, 10]


def test_a_successor_does_not_let_what_waited_for_an_owner_wait_again(world: World) -> None:
    Acks.claim(world.store, Publisher(world.store), "web", 1, [JOURNAL])
    pipeline = ScriptedPipeline(spec(seconds=3600.0))
    world.safe[JOURNAL] = 10
    world.run(pipeline, epoch=2)
    until(lambda: world.ack() == 10)
    world.safe[JOURNAL] = 20
    time.sleep(0.3)
    assert world.ack() == 10, "its second batch waits until it is old enough"


def test_a_process_that_drains_waits_for_journals_that_it_cannot_reach(world: World) -> None:
    end = world.safe.pop(JOURNAL)
    runner = world.run(ScriptedPipeline(spec()))
    runner.drain()
    assert not runner.join(0.3)
    world.safe[JOURNAL] = end + 5
    assert runner.join(PATIENCE_SECONDS)
    assert world.ack() == 5


def test_a_pause_of_zookeeper_holds_acks_back_and_redoes_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = ScriptedPipeline(spec())
    world.run(pipeline)
    until(lambda: world.states() == ["running"])
    world.store.cut()
    world.safe[JOURNAL] = 10
    until(lambda: "pauses" in caplog.text)
    time.sleep(0.3)
    assert caplog.text.count("pauses") == 1
    world.store.heal()
    until(lambda: world.ack() == 10)
    assert pipeline.batches == [(Range(JOURNAL, 0, 10),)]
    assert world.states() == ["running"]


def test_a_flow_that_cannot_be_built_is_failed_with_the_sentence(world: World) -> None:
    def refuse(_assignment: Assignment) -> ScriptedPipeline:
        raise UserError("no such column")

    world.run_built(refuse)
    until(lambda: world.statuses)
    statuses = world.statuses
    assert (statuses[0].state, statuses[0].error) == ("failed", "no such column")


def test_a_status_has_no_secret_not_even_a_part_of_one(world: World) -> None:
    password = Secret("runner-password-1")

    def refuse(_assignment: Assignment) -> ScriptedPipeline:
        raise UserError("x" * (ERROR_CHARACTERS - 10) + password)

    world.run_built(refuse)
    until(lambda: world.statuses)
    error = world.statuses[0].error
    assert error is not None
    assert error.endswith("x***")


@pytest.mark.parametrize(("delivery", "marked"), [("at-least-once", True), ("at-most-once", False)])
def test_only_at_least_once_marks_what_an_earlier_owner_may_have_delivered(
    world: World, delivery: str, marked: bool
) -> None:
    Acks.claim(world.store, Publisher(world.store), "web", 1, [JOURNAL])
    pipeline = ScriptedPipeline(spec(delivery))
    publisher = Publisher(world.store)
    task = Task(assignment(), world.store, publisher, pipeline, world, size=BatchSize(100))
    for safe in (10, 15):
        world.safe[JOURNAL] = safe
        while world.ack() < safe:
            batch = task.start()
            assert batch
            pipeline.batches.append(batch.ranges)
            task.settle(batch, [Written(batch.events)])
            task.commit()
    task.close()
    assert pipeline.batches == [(Range(JOURNAL, 0, 10, marked),), (Range(JOURNAL, 10, 15),)]


def test_a_journal_that_ends_below_its_ack_is_said_to_have_lost_events(world: World) -> None:
    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(spec()))
    until(lambda: world.ack() == 10)
    world.safe[JOURNAL] = 9
    until(lambda: "lost events" in str(world.statuses[-1].error))
    assert world.states()[-1] == "running"
    world.safe[JOURNAL] = 11
    until(lambda: world.ack() == 11)
    until(lambda: world.statuses[-1].error is None)


def test_an_assignment_that_comes_while_an_older_one_is_refused_is_taken(world: World) -> None:
    """What goes wrong with the old one says nothing of the new one."""
    inside, gate = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert gate.wait(PATIENCE_SECONDS)

    world.store.before_acks = wait
    world.safe[JOURNAL] = 10
    runner = world.run(ScriptedPipeline(spec()), epoch=1)
    assert inside.wait(PATIENCE_SECONDS)
    world.store.before_acks = None
    Acks.claim(world.store, Publisher(world.store), "web", 2, [JOURNAL])
    runner.assign(assignment(3))
    gate.set()
    until(lambda: world.ack() == 10)
    assert [(each.epoch, each.state) for each in world.statuses] == [(1, "stopped"), (3, "running")]


def test_nothing_is_reported_once_a_task_was_told_to_stop(world: World) -> None:
    """Its report must not come behind the answer to the configuration that lacks the task."""
    told: list[str] = []
    stopped = threading.Event()
    runners: list[Runner] = []

    def stop() -> None:
        until(lambda: runners)
        runners[0].stop()
        told.append("stopped")
        stopped.set()

    def report(_key: str, status: Status) -> None:
        threading.Thread(target=stop, daemon=True).start()
        stopped.wait(0.5)
        told.append(status.state)

    runners.append(world.run(ScriptedPipeline(spec()), report=report))
    assert runners[0].join(PATIENCE_SECONDS)
    until(lambda: len(told) == 2)
    assert told == ["running", "stopped"]


def test_a_task_recovers_its_batch_size_after_failures(world: World) -> None:
    """Also while its batches are so small that they share jobs."""
    failures = [UnavailableError("the lake is away") for _ in range(10)]

    def fail(_ranges: Sequence[Range]) -> None:
        if failures:
            raise failures.pop()

    wide = replace(spec(), batch=replace(spec().batch, events=1_000_000))
    pipeline = ScriptedPipeline(wide, fail, shareable=True)
    world.safe[JOURNAL] = 2_000_000
    runner = world.run(pipeline)
    until(lambda: not failures)
    until(lambda: world.ack() == 2_000_000)
    sizes = [sum(piece.events for piece in batch) for batch in pipeline.batches]
    assert min(sizes[:3]) < SMALL_EVENTS / 2
    assert max(sizes) > 10 * SMALL_EVENTS
    runner.stop()


def test_a_small_batch_of_a_large_backlog_may_share_a_job(world: World) -> None:
    world.safe[JOURNAL] = 1_000_000
    task = Task(
        assignment(),
        world.store,
        Publisher(world.store),
        ScriptedPipeline(spec()),
        world,
        size=BatchSize(100),
    )
    assert task.look(eager=False).events == 100


def test_a_decided_batch_is_repeated_by_the_revision_that_decided_it(world: World) -> None:
    """Exactly its events, before anything new; then the wanted revision goes on."""
    for number in (1, 2):
        record = Revision(text=f"of {number}", author="a", reason="", time=0.0)
        world.store.write(paths.revision("web", str(number)), record, ABSENT)
    intent = Intent(epoch=1, series="s", number=7, revision=1, splits=2, ranges={JOURNAL: (0, 40)})
    world.store.write(paths.intent("web", "collect.0"), intent, ABSENT)
    world.safe[JOURNAL] = 100
    pipelines = {number: ScriptedPipeline(once()) for number in (1, 2)}
    built: list[tuple[int, str]] = []

    def build(assignment: Assignment) -> ScriptedPipeline:
        built.append((assignment.revision, assignment.spec))
        return pipelines[assignment.revision]

    runner = world.run_built(build)
    runner.assign(replace(assignment(), revision=2, spec="of 2"))
    until(lambda: world.ack() == 100)
    assert (1, "of 1") in built
    assert pipelines[1].batches[0] == (Range(JOURNAL, 0, 40),)
    assert sum(piece.events for batch in pipelines[2].batches for piece in batch) == 60
    found = world.store.read(paths.intent("web", "collect.0"))
    assert found
    assert (found.value.number, found.value.ranges) == (7, {})


def test_partitions_are_read_as_the_revision_of_the_claim_says(world: World) -> None:
    """Another revision may name other brokers, or other credentials."""
    world.safe[JOURNAL] = 10
    specs = {1: spec(), 2: spec(seconds=0.01)}
    runner = world.run_built(lambda wanted: ScriptedPipeline(specs[wanted.revision]))
    until(lambda: world.ack() == 10)
    runner.assign(replace(assignment(), revision=2))
    world.safe[JOURNAL] = 20
    until(lambda: world.ack() == 20 and len(world.opened) == 2)
    assert world.opened == [specs[1], specs[2]]


def test_a_decided_batch_of_a_revision_that_is_gone_is_told(world: World) -> None:
    intent = Intent(epoch=1, series="s", number=7, revision=0, splits=1, ranges={JOURNAL: (0, 4)})
    world.store.write(paths.intent("web", "collect.0"), intent, ABSENT)
    world.safe[JOURNAL] = 100
    world.run(ScriptedPipeline(once()))
    until(lambda: "failed" in world.states())
    assert "flumeng ack drop web collect.0" in str(world.statuses[-1].error)
    assert world.ack() == 0


def test_a_target_that_is_away_is_told_while_the_task_runs(world: World) -> None:
    """Until a batch is written again; the task has not failed."""
    away = threading.Event()

    def write(_ranges: Sequence[Range]) -> None:
        if away.is_set():
            raise UnavailableError("the index is away")

    world.run(ScriptedPipeline(spec(), before_write=write))
    world.safe[JOURNAL] = 10
    until(lambda: world.ack() == 10)
    away.set()
    world.safe[JOURNAL] = 20
    until(lambda: "waits: the index is away" in str(world.statuses[-1].error))
    time.sleep(1.5)
    assert {status.error for status in world.statuses[-3:]} <= {None, world.statuses[-1].error}
    assert world.statuses[-1].error == "waits: the index is away"
    told = len(world.statuses)
    away.clear()
    until(lambda: world.ack() == 20)
    until(lambda: world.statuses[-1].error in (None, ""))
    assert "failed" not in world.states()
    assert len(world.statuses) == told + 1, "nothing was said twice while it was away"


def test_an_idle_flow_costs_no_job(world: World) -> None:
    """Also after it has had events: nothing is written until more of them come."""
    written: list[Sequence[Range]] = []
    world.run(ScriptedPipeline(spec(), written.append))
    until(lambda: world.states() == ["running"])
    time.sleep(2)
    assert written == []
    world.safe[JOURNAL] = 10
    until(lambda: world.ack() == 10)
    jobs = len(written)
    time.sleep(2)
    assert len(written) == jobs
