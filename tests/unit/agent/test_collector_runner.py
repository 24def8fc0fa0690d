"""The thread of one task: its status reports, the start of its batches, and its failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Filtered
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.measures import COUNTED
from flumeng.agent.collector.outcome import HungError
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.slot import SMALL_EVENTS
from flumeng.agent.collector.status import ERROR_CHARACTERS, Status
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import BatchTooWideError
from flumeng.control.commands.cluster import export_cluster, import_cluster
from flumeng.control.commands.operator import Operator
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.metrics import table
from flumeng.platform.scrubbing import Secret
from tests.testkit.collector import ScriptedPipeline
from tests.testkit.scripted_store import concerns, nothing
from tests.testkit.store import Znodes
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from tests.unit.agent.task_world import JOURNAL, World, assignment, running, spec
from zkschema import paths


@pytest.fixture
def world() -> Iterator[World]:
    with running() as world:
        yield world


def test_batches_run_and_one_status_is_reported(world: World) -> None:
    pipeline = ScriptedPipeline(spec())
    world.safe[JOURNAL] = 250
    world.run(pipeline)
    wait_for(lambda: world.ack() == 250)
    assert sorted(pipeline.batches, key=lambda batch: batch[0].start) == [
        (Range(JOURNAL, 0, 100),),
        (Range(JOURNAL, 100, 200),),
        (Range(JOURNAL, 200, 250),),
    ]
    assert world.statuses == [Status(1, 1, "running", None, (JOURNAL,))]
    wait_for(lambda: world.counted(table.COLLECT_EVENTS) == {("web",): 250})
    assert world.counted(table.COLLECT_BATCHES) == {("web",): 3}
    assert world.counted(table.COLLECT_FAILURES) == {}
    world.measures.keep(["another/collect.0"])
    assert world.counted(table.COLLECT_EVENTS) == {}


def test_no_batch_begins_while_the_input_rests(world: World) -> None:
    pipeline = ScriptedPipeline(spec())
    world.safe[JOURNAL], world.resting = 50, True
    runner = world.run(pipeline)
    wait_for(lambda: world.statuses == [Status(1, 1, "running", None, (JOURNAL,))])
    time.sleep(0.2)
    assert (pipeline.batches, world.ack()) == ([], 0)
    world.resting = False
    wait_for(lambda: world.ack() == 50)
    world.safe[JOURNAL], world.resting = 70, True
    runner.drain()
    assert runner.join(PATIENCE_SECONDS), "a drain does not wait for the window"
    assert world.ack() == 50


def test_batches_of_a_limited_input_take_few_seconds(world: World) -> None:
    """Events count as 1 KiB before the first are seen; a batch of 100 would take 25 s."""
    pipeline = ScriptedPipeline(replace(spec(), batch=replace(spec().batch, events=10_000)))
    world.safe[JOURNAL], world.limit = 10_000, 100 * 1024
    world.run(pipeline)
    wait_for(lambda: world.ack() == 10_000)
    assert max(ranges[0].events for ranges in pipeline.batches) <= 100 * BatchSize.PACED_SECONDS
    world.safe[JOURNAL], world.limit = 20_000, 0
    wait_for(lambda: world.ack() == 20_000)
    assert max(ranges[0].events for ranges in pipeline.batches) > 400


@pytest.mark.slow
def test_counts_of_committed_batches_are_kept_by_task(world: World) -> None:
    """A claim under another epoch counts from zero; one that begins again after a failure goes
    on."""
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

    wait_for(lambda: minute() == [(1, 100, None, 3, 0)])
    world.safe[JOURNAL] = 200
    wait_for(lambda: minute() == [(1, 200, None, 6, 0)])
    world.runners[0].assign(assignment(2))
    wait_for(lambda: minute() == [(2, 0, 0, 0, 0)])


def test_acks_keep_the_order_of_batches_that_finish_out_of_order(world: World) -> None:
    first_may_end = threading.Event()

    def wait(ranges: Sequence[Range]) -> None:
        if ranges[0].start == 0:
            assert first_may_end.wait(PATIENCE_SECONDS)

    pipeline = ScriptedPipeline(spec(), wait)
    world.safe[JOURNAL] = 200
    world.run(pipeline)
    wait_for(lambda: pipeline.batches == [(Range(JOURNAL, 100, 200),)])
    assert world.ack() == 0
    first_may_end.set()
    wait_for(lambda: world.ack() == 200)


@pytest.mark.slow
def test_failed_batch_is_reported_once_and_retried_from_the_ack(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def fail_twice(ranges: Sequence[Range]) -> None:
        tries.append(ranges)
        if len(tries) <= 2:
            raise OSError("disk on fire")

    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(spec(), fail_twice))
    wait_for(lambda: world.ack() == 10)
    wait_for(lambda: world.states()[-1] == "running")
    assert world.states() == ["running", "failed", "running"]
    assert world.statuses[1].error == "disk on fire"
    assert world.statuses[1].partitions == ()
    assert caplog.text.count("disk on fire") == 1
    assert world.counted(table.COLLECT_FAILURES) == {("web", "failed"): 2}


@pytest.mark.slow
def test_task_is_unhealthy_after_three_failures_until_all_is_delivered(world: World) -> None:
    tries = []

    def fail_thrice(ranges: Sequence[Range]) -> None:
        tries.append(ranges)
        if len(tries) <= 3:
            raise OSError("disk on fire")

    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(spec(), fail_thrice))
    wait_for(lambda: world.ack() == 10)
    wait_for(lambda: (world.states()[-1], world.statuses[-1].health) == ("running", ""))
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
    wait_for(lambda: "failed" in world.states())
    assert world.ack() == 0


@pytest.mark.slow
def test_too_wide_batch_becomes_smaller_and_is_no_failure(world: World) -> None:
    def refuse_wide(ranges: Sequence[Range]) -> None:
        if sum(piece.events for piece in ranges) > BatchSize.LEAST:
            raise BatchTooWideError("too many files")

    wide = replace(spec(), batch=replace(spec().batch, events=3 * BatchSize.LEAST))
    world.safe[JOURNAL] = 10 * BatchSize.LEAST
    world.run(ScriptedPipeline(wide, refuse_wide))
    wait_for(lambda: world.ack() == 10 * BatchSize.LEAST)
    assert world.states() == ["running"]


def test_lost_zookeeper_delays_acks_and_repeats_no_batch(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = ScriptedPipeline(spec())
    world.run(pipeline)
    wait_for(lambda: world.states() == ["running"])
    world.store.cut()
    world.safe[JOURNAL] = 10
    wait_for(lambda: "pauses" in caplog.text)
    time.sleep(0.3)
    assert caplog.text.count("pauses") == 1
    world.store.heal()
    wait_for(lambda: world.ack() == 10)
    assert pipeline.batches == [(Range(JOURNAL, 0, 10),)]
    assert world.states() == ["running"]


def test_flow_that_cannot_be_built_is_failed_with_the_reason(world: World) -> None:
    def refuse(_assignment: Assignment) -> ScriptedPipeline:
        raise UserError("no such column")

    world.run_built(refuse)
    wait_for(lambda: world.statuses)
    statuses = world.statuses
    assert (statuses[0].state, statuses[0].error) == ("failed", "no such column")


def test_status_shows_no_part_of_a_secret(world: World) -> None:
    password = Secret("runner-password-1")

    def refuse(_assignment: Assignment) -> ScriptedPipeline:
        raise UserError("x" * (ERROR_CHARACTERS - 10) + password)

    world.run_built(refuse)
    wait_for(lambda: world.statuses)
    error = world.statuses[0].error
    assert error is not None
    assert error.endswith("x***")


def test_journal_that_ends_below_its_ack_is_reported_to_have_lost_events(world: World) -> None:
    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(spec()))
    wait_for(lambda: world.ack() == 10)
    world.safe[JOURNAL] = 9
    wait_for(lambda: "lost durable events" in str(world.statuses[-1].error))
    assert world.states()[-1] == "running"
    world.safe[JOURNAL] = 11
    wait_for(lambda: world.ack() == 11)
    wait_for(lambda: world.statuses[-1].error is None)


def test_assignment_that_comes_while_an_older_one_is_refused_is_taken(world: World) -> None:
    """An error of the old one is no error of the new one."""
    inside, gate = threading.Event(), threading.Event()

    def wait(wanted: Sequence[object]) -> None:
        if concerns(paths.ack)(wanted):
            inside.set()
            assert gate.wait(PATIENCE_SECONDS)

    world.store.before_read = wait
    world.safe[JOURNAL] = 10
    runner = world.run(ScriptedPipeline(spec()), epoch=1)
    assert inside.wait(PATIENCE_SECONDS)
    world.store.before_read = nothing
    Acks.claim(world.store, Publisher(world.store), "web", 2, [JOURNAL])
    runner.assign(assignment(3))
    gate.set()
    wait_for(lambda: world.ack() == 10)
    assert [(each.epoch, each.state) for each in world.statuses] == [(1, "stopped"), (3, "running")]


@pytest.mark.slow
def test_nothing_is_reported_after_a_stop(world: World) -> None:
    """Its report must not come behind the answer to the configuration that lacks the task."""
    told: list[str] = []
    stopped = threading.Event()
    runners: list[Runner] = []

    def stop() -> None:
        wait_for(lambda: runners)
        runners[0].stop()
        told.append("stopped")
        stopped.set()

    def report(_key: str, status: Status) -> None:
        threading.Thread(target=stop, daemon=True).start()
        stopped.wait(0.5)
        told.append(status.state)

    runners.append(world.run(ScriptedPipeline(spec()), report=report))
    assert runners[0].join(PATIENCE_SECONDS)
    wait_for(lambda: len(told) == 2)
    assert told == ["running", "stopped"]


@pytest.mark.slow
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
    wait_for(lambda: not failures)
    wait_for(lambda: world.ack() == 2_000_000)
    sizes = [sum(piece.events for piece in batch) for batch in pipeline.batches]
    assert min(sizes[:3]) < SMALL_EVENTS / 2
    assert max(sizes) > 10 * SMALL_EVENTS
    runner.stop()


def test_a_small_batch_of_a_large_backlog_may_share_a_job(world: World) -> None:
    world.safe[JOURNAL] = 1_000_000
    task = ClaimedTask(
        assignment(),
        world.store,
        Publisher(world.store),
        ScriptedPipeline(spec()),
        world,
        size=BatchSize(100),
    )
    assert task.backlog(eager=False).events == 100


@pytest.mark.slow
def test_unavailable_target_is_reported_while_the_task_retries(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Until a batch is written again. The task retries and has not failed."""
    caplog.set_level("INFO")
    away = threading.Event()

    def write(_ranges: Sequence[Range]) -> None:
        if away.is_set():
            raise UnavailableError("the index is away")

    world.run(ScriptedPipeline(spec(), before_write=write))
    world.safe[JOURNAL] = 10
    wait_for(lambda: world.ack() == 10)
    away.set()
    world.safe[JOURNAL] = 20
    wait_for(lambda: world.states()[-1:] == ["retrying"])
    time.sleep(1.5)
    assert world.statuses[-1].error == "the index is away"
    assert world.statuses[-1].partitions == (JOURNAL,)
    told = len(world.statuses)
    assert caplog.text.count("runs here, under epoch 1") == 1, "it is not logged at each retry"
    away.clear()
    wait_for(lambda: world.ack() == 20)
    wait_for(lambda: world.statuses[-1].error in (None, ""))
    assert caplog.messages.count("task web/collect.0 works again") == 1
    assert "failed" not in world.states()
    assert len(world.statuses) == told + 1, "nothing was said twice while it was away"


@pytest.mark.slow
def test_cause_of_a_retry_replaces_the_failure_reported_before(world: World) -> None:
    """A batch hangs once; then the sink refuses connections, and the task reports that."""
    causes: list[Exception] = [HungError("a batch has hung")]

    def write(_ranges: Sequence[Range]) -> None:
        raise causes.pop() if causes else UnavailableError("search:9201: Connection refused")

    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(spec(), before_write=write))
    wait_for(lambda: world.states()[-1:] == ["retrying"])
    assert world.states() == ["running", "failed", "retrying"]
    assert world.statuses[-1].error == "search:9201: Connection refused"
    wait_for(lambda: world.statuses[-1].health == "unreachable")
    assert world.states()[2:] == ["retrying"] * len(world.states()[2:])


@pytest.mark.slow
def test_full_journal_starts_a_batch_early(world: World) -> None:
    """Its senders wait, so that no more events gather; else the batch waits for an hour."""
    patient = replace(spec(), batch=replace(spec().batch, seconds=3600.0))
    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(patient))
    wait_for(lambda: world.states() == ["running"])
    time.sleep(0.2)
    assert world.ack() == 0
    world.full.add(JOURNAL)
    wait_for(lambda: world.ack() == 10)


@pytest.mark.slow
def test_idle_flow_writes_no_batch(world: World) -> None:
    """Also after it has had events: nothing is written until more of them come."""
    written: list[Sequence[Range]] = []
    world.run(ScriptedPipeline(spec(), written.append))
    wait_for(lambda: world.states() == ["running"])
    time.sleep(2)
    assert written == []
    world.safe[JOURNAL] = 10
    wait_for(lambda: world.ack() == 10)
    jobs = len(written)
    time.sleep(2)
    assert len(written) == jobs


@pytest.mark.slow
@pytest.mark.parametrize("idle", [False, True], ids=["busy", "idle"])
def test_task_claims_again_after_an_import_while_it_runs(world: World, idle: bool) -> None:
    """The import brings the same epochs. Where no tree is there nothing is claimed, so that the
    task does not go on without its partitions."""
    world.safe[JOURNAL] = 100
    world.run(ScriptedPipeline(spec()))
    wait_for(lambda: world.ack() == 100)
    exported = export_cluster(world.store)
    world.store.cut()
    world.store.tree.znodes = Znodes()
    world.store.heal()
    if not idle:
        world.safe[JOURNAL] = 150
    turns = world.scheduler.turns
    wait_for(lambda: world.scheduler.turns > turns + 5)
    import_cluster(Operator(world.store, "a", "", 1.0), exported)
    world.safe[JOURNAL] = 200
    wait_for(lambda: world.ack() == 200)
