"""Events that an input has deleted before they were read: passed over in batches of their own,
acked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.gaps import Gap, gaps, gone
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import DELETED, Gone, Range, Reach
from flumeng.connectors.api.sink import Written
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY, Put
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import new_cluster
from tests.testkit.collector import ScriptedPipeline, StillPositions, register
from zkschema import paths
from zkschema.records import Cluster

A, B = "web.n1.0.aaaaaaaa", "web.n2.0.bbbbbbbb"


@dataclass
class Shortened(StillPositions):
    reach: dict[str, Reach]

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {name: self.reach[name] for name in partitions if name in self.reach}


def test_gap_has_only_the_deleted_events() -> None:
    reached = {A: Reach("", 20, gone_below=7, gone_why="it is damaged"), B: Reach("", 5)}
    assert gaps({A: 3, B: 0}, reached, 10) == (Gap(Range(A, 3, 7), "it is damaged"),)
    assert gaps({A: 7, B: 0}, reached, 10) == ()
    assert gaps({A: 0, "away": 0}, reached, 10) == (Gap(Range(A, 0, 7), "it is damaged"),)
    most = gaps(dict.fromkeys("abc", 0), {n: Reach("", 9, gone_below=9) for n in "abc"}, 2)
    assert [gap.piece for gap in most] == [Range("a", 0, 9), Range("b", 0, 9)]


def test_readable_events_before_a_gap_are_not_in_it() -> None:
    reached = {A: Reach("", 20, gone_from=5, gone_below=7)}
    assert gaps({A: 4}, reached, 10) == ()
    assert [gap.piece for gap in gaps({A: 5}, reached, 10)] == [Range(A, 5, 7)]
    assert gone((Range(A, 4, 7),), reached) == ()


def test_batch_is_a_gap_when_all_of_its_events_are_deleted() -> None:
    reached = {A: Reach("", 20, gone_below=7), B: Reach("", 5)}
    assert gone((Range(A, 0, 7),), reached) == (Gap(Range(A, 0, 7), DELETED),)
    assert gone((Range(A, 0, 8),), reached) == ()
    assert gone((Range(A, 0, 7), Range(B, 0, 1)), reached) == ()


def test_gap_is_logged_when_it_is_acked_and_not_at_each_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = new_cluster()
    text = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"
    apply_flow(Operator(store, "test", "", 0.0), text)
    register(store, "web", A)

    def begun() -> tuple[ClaimedTask, Batch]:
        task = ClaimedTask(
            Assignment("web", "collect.0", 1, 1, "", (A,)),
            store,
            Publisher(store, gap_seconds=0.0),
            ScriptedPipeline(parse_flow(text)),
            Shortened({A: Reach("", 20, gone_below=7)}),
            size=BatchSize(1000),
        )
        batch = task.start()
        assert batch is not None
        return task, batch

    for _ in range(3):
        task, batch = begun()
        task.settle(batch, UnavailableError("the sink is away"))
        with pytest.raises(UnavailableError):
            task.commit()
    assert caplog.messages == []
    task, batch = begun()
    task.settle(batch, [])
    task.commit()
    (message,) = caplog.messages
    assert message.startswith("flow web: events that cannot be read were skipped: ")


def test_parts_that_a_batch_leaves_out_count_as_gone() -> None:
    store = new_cluster()
    text = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"
    apply_flow(Operator(store, "test", "", 0.0), text)
    register(store, "web", A)
    task = ClaimedTask(
        Assignment("web", "collect.0", 1, 1, "", (A,)),
        store,
        Publisher(store, gap_seconds=0.0),
        ScriptedPipeline(parse_flow(text)),
        Shortened({A: Reach("", 20, left_out=(Gone(3, 7, DELETED), Gone(18, 30, DELETED)))}),
        size=BatchSize(1000),
    )
    batch = task.start()
    assert batch is not None
    assert (batch.ranges, batch.gone) == ((Range(A, 0, 20),), 6)


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once", "exactly-once"])
def test_gap_is_acked_and_reading_continues_behind_it(delivery: str) -> None:
    store = new_cluster()
    text = (
        f"flow: web\nsources: [{{syslog: {{listen: '127.0.0.1:0'}}}}]\ndelivery: {delivery}\n"
        "sinks: [{files: {path: /lake}}]\n"
    )
    apply_flow(Operator(store, "test", "", 0.0), text)
    register(store, "web", A, B)
    spec = parse_flow(text)
    told = Put(paths.cluster(), Cluster(grace_seconds=3.0), ANY)
    gone_of_a = Reach("", 20, gone_below=7, left_out=(Gone(0, 7, DELETED, (told,)),))
    positions = Shortened({A: gone_of_a, B: Reach("", 5)})
    task = ClaimedTask(
        Assignment("web", "collect.0", 1, 1, "", (A, B)),
        store,
        Publisher(store, gap_seconds=0.0),
        ScriptedPipeline(spec),
        positions,
        size=BatchSize(1000),
    )
    seen = []
    while not task.caught_up:
        if task.may_start and task.backlog(eager=True).events:
            batch = task.start()
            assert batch is not None
            seen.append((bool(batch.gaps), batch.gone, batch.events, batch.ranges))
            task.settle(batch, [Written(batch.events)])
        elif task.running:
            task.commit()
    whole = tuple(Range(name, start, end) for name, start, end in ((A, 7, 20), (B, 0, 5)))
    assert seen == [(True, 7, 0, (Range(A, 0, 7),)), (False, 0, 18, whole)]
    acks = {name: store.read(paths.ack("web", "main", name)) for name in (A, B)}
    assert {name: ack.value.offset for name, ack in acks.items() if ack} == {A: 20, B: 5}
    cluster = store.read(paths.cluster())
    assert cluster is not None
    assert cluster.value.grace_seconds == 3.0, "it is written with the ack"
