"""A task claims its partitions, waits, hands over its events, and releases them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize
from flumeng.agent.collector.status import Status
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import Written
from flumeng.control.zookeeper import ABSENT
from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.collector import ScriptedPipeline
from tests.testkit.scripted_store import fail_at
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from tests.unit.agent.task_world import JOURNAL, World, assignment, once, running, spec
from zkschema import paths
from zkschema.records import Intent, Revision


@pytest.fixture
def world() -> Iterator[World]:
    with running() as world:
        yield world


@pytest.mark.slow
def test_events_in_closed_journals_do_not_wait_for_more(world: World) -> None:
    world.run(ScriptedPipeline(spec(seconds=86_400.0)))
    world.safe[JOURNAL] = 30
    time.sleep(0.5)
    assert world.ack() == 0
    world.closed.add(JOURNAL)
    wait_for(lambda: world.ack() == 30)


@pytest.mark.slow
def test_fenced_task_does_no_work_until_a_new_assignment(world: World) -> None:
    runner = world.run(ScriptedPipeline(spec()))
    wait_for(lambda: world.states() == ["running"])
    Acks.claim(world.store, Publisher(world.store), "web", 2, [JOURNAL])
    world.safe[JOURNAL] = 10
    wait_for(lambda: world.states()[-1] == "stopped")
    assert world.statuses[-1] == Status(1, 1, "stopped", "superseded", (), epoch_seen=2)
    time.sleep(0.3)
    assert (world.ack(), world.states()) == (0, ["running", "stopped"])
    runner.assign(assignment(3))
    wait_for(lambda: world.states()[-1] == "running")
    assert world.statuses[-1].epoch == 3


@pytest.mark.slow
def test_duplicate_owner_under_the_same_epoch_that_ends_does_not_end_the_work(world: World) -> None:
    """A collector whose node was restarted may claim once more before it notices."""
    pipeline = ScriptedPipeline(spec())
    world.run(pipeline)
    wait_for(lambda: world.states() == ["running"])
    Acks.claim(world.store, Publisher(world.store), "web", 1, [JOURNAL])
    world.safe[JOURNAL] = 10
    wait_for(lambda: world.ack() == 10)
    assert world.states() == ["running"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", range(1, 5))
def test_owner_recognises_its_own_write_whose_reply_was_lost(world: World, lost: int) -> None:
    """The claim is the first write, then come two batches."""
    world.store.after_commit = fail_at(lost, UnavailableError("ConnectionLoss"))
    before = len(world.store.transactions)
    world.safe[JOURNAL] = 200
    world.run(ScriptedPipeline(spec()))
    wait_for(lambda: world.ack() == 200)
    world.safe[JOURNAL] = 250
    wait_for(lambda: world.ack() == 250)
    assert len(world.store.transactions) >= before + lost
    assert world.states()[-1] == "running"


def test_draining_task_finishes_its_batch_and_releases(world: World) -> None:
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
    wait_for(lambda: world.states()[-1] == "stopped")
    assert (world.ack(), world.statuses[-1].error) == (10, None)


@pytest.mark.slow
def test_small_batch_waits_until_it_is_old_enough_unless_the_process_stops(world: World) -> None:
    pipeline = ScriptedPipeline(spec(seconds=3600.0))
    world.safe[JOURNAL] = 99
    runner = world.run(pipeline)
    time.sleep(0.3)
    assert pipeline.batches == []
    world.safe[JOURNAL] = 100
    wait_for(lambda: world.ack() == 100)
    world.safe[JOURNAL] = 101
    time.sleep(0.3)
    assert world.ack() == 100
    runner.drain()
    assert runner.join(PATIENCE_SECONDS)
    assert world.ack() == 101


@pytest.mark.slow
def test_handoff_delivers_present_events_once_in_as_many_batches_as_needed(world: World) -> None:
    pipeline = ScriptedPipeline(spec(seconds=3600.0))
    world.safe[JOURNAL] = 40
    runner = world.run(pipeline)
    time.sleep(0.3)
    assert pipeline.batches == []
    runner.assign(replace(assignment(), handoff=1))
    wait_for(lambda: world.ack() == 40)
    world.safe[JOURNAL] = 50
    time.sleep(0.3)
    assert world.ack() == 40, "what comes later gathers as ever"
    runner.assign(replace(assignment(), handoff=1))
    time.sleep(0.3)
    assert world.ack() == 40, "one number is one handoff"
    world.safe[JOURNAL] = 40 + 230
    runner.assign(replace(assignment(), handoff=2))
    wait_for(lambda: world.ack() == 270)
    assert world.states() == ["running"], "nothing was claimed anew"


@pytest.mark.slow
def test_handoff_continues_when_one_of_its_batches_fails(world: World) -> None:
    failures = [UnavailableError("away"), UnavailableError("away")]

    def fail(ranges: Sequence[Range]) -> None:
        if ranges[0].start > 0 and failures:
            raise failures.pop()

    runner = world.run(ScriptedPipeline(spec(seconds=3600.0), fail))
    wait_for(lambda: world.states() == ["running"])
    world.safe[JOURNAL] = 150
    runner.assign(replace(assignment(), handoff=1))
    wait_for(lambda: world.ack() == 150)
    assert failures == []


def test_task_that_starts_after_a_handoff_request_delivers_it(world: World) -> None:
    world.safe[JOURNAL] = 40
    world.run(ScriptedPipeline(spec(seconds=3600.0)), handoff=3)
    wait_for(lambda: world.ack() == 40)


def test_a_handoff_waits_for_a_partition_that_cannot_be_reached(world: World) -> None:
    end = world.safe.pop(JOURNAL)
    runner = world.run(ScriptedPipeline(spec(seconds=3600.0)))
    runner.assign(replace(assignment(), handoff=1))
    time.sleep(0.3)
    world.safe[JOURNAL] = end + 5
    wait_for(lambda: world.ack() == 5)


@pytest.mark.slow
def test_batch_that_has_its_bytes_waits_no_longer(world: World) -> None:
    """And is cut where it has them, by the mean size of earlier events."""
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
    wait_for(lambda: world.ack() == 120)
    assert [piece.events for batch in pipeline.batches for piece in batch] == [100, 10, 10]


@pytest.mark.slow
def test_successor_delivers_at_once_the_events_that_waited_for_an_owner(world: World) -> None:
    Acks.claim(world.store, Publisher(world.store), "web", 1, [JOURNAL])
    pipeline = ScriptedPipeline(spec(seconds=3600.0))
    world.safe[JOURNAL] = 10
    world.run(pipeline, epoch=2)
    wait_for(lambda: world.ack() == 10)
    world.safe[JOURNAL] = 20
    time.sleep(0.3)
    assert world.ack() == 10, "its second batch waits until it is old enough"


@pytest.mark.slow
def test_draining_process_waits_for_unreachable_journals(world: World) -> None:
    end = world.safe.pop(JOURNAL)
    runner = world.run(ScriptedPipeline(spec()))
    runner.drain()
    assert not runner.join(0.3)
    world.safe[JOURNAL] = end + 5
    assert runner.join(PATIENCE_SECONDS)
    assert world.ack() == 5


@pytest.mark.parametrize(("delivery", "marked"), [("at-least-once", True), ("at-most-once", False)])
def test_at_least_once_marks_events_possibly_delivered_by_an_earlier_owner(
    world: World, delivery: str, marked: bool
) -> None:
    Acks.claim(world.store, Publisher(world.store), "web", 1, [JOURNAL])
    pipeline = ScriptedPipeline(spec(delivery))
    publisher = Publisher(world.store)
    task = ClaimedTask(assignment(), world.store, publisher, pipeline, world, size=BatchSize(100))
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
    wait_for(lambda: world.ack() == 100)
    assert (1, "of 1") in built
    assert pipelines[1].batches[0] == (Range(JOURNAL, 0, 40),)
    assert sum(piece.events for batch in pipelines[2].batches for piece in batch) == 60
    found = world.store.read(paths.intent("web", "collect.0"))
    assert found
    assert (found.value.number, found.value.ranges) == (7, {})


def test_decided_batch_is_repeated_with_the_filters_of_the_other_site(world: World) -> None:
    """The site has others by now, which the batches after it get."""
    intent = Intent(
        epoch=1,
        series="s",
        number=7,
        revision=1,
        splits=1,
        ranges={JOURNAL: (0, 40)},
        filters="old",
    )
    world.store.write(paths.intent("web", "collect.0"), intent, ABSENT)
    world.safe[JOURNAL] = 100
    decided: list[str] = []

    def note(_ranges: Sequence[Range]) -> None:
        found = world.store.read(paths.intent("web", "collect.0"))
        assert found
        decided.append(found.value.filters)

    pipelines = {
        name: ScriptedPipeline(once(), note, intent="before", filters=name)
        for name in ("old", "new")
    }
    world.run_built(lambda wanted: pipelines[wanted.filters or "new"])
    wait_for(lambda: world.ack() == 100)
    assert pipelines["old"].batches == [(Range(JOURNAL, 0, 40),)]
    assert sum(piece.events for batch in pipelines["new"].batches for piece in batch) == 60
    assert decided == ["old", *["new"] * len(pipelines["new"].batches)]


def test_task_takes_the_other_filters_of_its_site_between_batches(world: World) -> None:
    world.safe[JOURNAL] = 10
    pipelines = [ScriptedPipeline(once(), filters="old"), ScriptedPipeline(once(), filters="new")]
    left = iter(pipelines)
    world.run_built(lambda _wanted: next(left))
    wait_for(lambda: world.ack() == 10)
    pipelines[0].outdated = True
    world.safe[JOURNAL] = 20
    wait_for(lambda: world.ack() == 20)
    assert pipelines[0].batches == [(Range(JOURNAL, 0, 10),)]
    assert pipelines[1].batches == [(Range(JOURNAL, 10, 20),)]
    assert "failed" not in world.states()


def test_decided_batch_whose_filters_are_gone_is_reported(world: World) -> None:
    intent = Intent(
        epoch=1, series="s", number=7, revision=1, splits=1, ranges={JOURNAL: (0, 4)}, filters="old"
    )
    world.store.write(paths.intent("web", "collect.0"), intent, ABSENT)
    world.safe[JOURNAL] = 100

    def build(wanted: Assignment) -> ScriptedPipeline:
        raise UserError(f"no kept revision has the filters {wanted.filters}")

    world.run_built(build)
    wait_for(lambda: "failed" in world.states())
    error = str(world.statuses[-1].error)
    assert "must be repeated as it was decided, but no kept revision has the filters old" in error
    assert "flumeng ack drop web collect.0" in error


def test_partitions_are_read_with_the_options_of_the_claimed_revision(world: World) -> None:
    """Another revision may name other brokers, or other credentials."""
    world.safe[JOURNAL] = 10
    specs = {1: spec(), 2: spec(seconds=0.01)}
    runner = world.run_built(lambda wanted: ScriptedPipeline(specs[wanted.revision]))
    wait_for(lambda: world.ack() == 10)
    runner.assign(replace(assignment(), revision=2))
    world.safe[JOURNAL] = 20
    wait_for(lambda: world.ack() == 20 and len(world.opened) == 2)
    assert world.opened == [specs[1], specs[2]]


def test_decided_batch_of_a_missing_revision_is_reported(world: World) -> None:
    intent = Intent(epoch=1, series="s", number=7, revision=0, splits=1, ranges={JOURNAL: (0, 4)})
    world.store.write(paths.intent("web", "collect.0"), intent, ABSENT)
    world.safe[JOURNAL] = 100
    world.run(ScriptedPipeline(once()))
    wait_for(lambda: "failed" in world.states())
    assert "flumeng ack drop web collect.0" in str(world.statuses[-1].error)
    assert world.ack() == 0
