"""A log that its server has cut below an ack: compared once, and never read on in silence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa
import pytest

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.gaps import RefuseGaps
from flumeng.agent.collector.partitions import LOOK_SECONDS, Partitions
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import CutError, Gone, Range, Reach, Standstill
from flumeng.connectors.api.sink import Written
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY
from flumeng.events import identity
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import new_cluster
from tests.testkit.collector import ScriptedPipeline, StillPositions
from zkschema import paths
from zkschema.records import Ack, Partition
from zkschema.records import Partitions as Registered

A, B = "orders.0.aaaaaaaa@kafka", "orders.1.aaaaaaaa@kafka"
WHY = "it was cut"
DELIVERIES = ("at-most-once", "at-least-once", "exactly-once")


@dataclass
class Servers(StillPositions):
    """Partitions with leaders.

    ``log_ends``: where the present log ends for the epoch of an earlier leader. Searches wait while
    they are ``held``, and fail while it is ``away``.
    """

    reach: dict[str, Reach]
    log_ends: dict[int, int] = field(default_factory=dict)
    passes: bool = True
    held: bool = False
    away: bool = False
    searches: list[tuple[str, int, int]] = field(default_factory=list)
    now: float = 1000.0

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {name: self.reach[name] for name in partitions if name in self.reach}

    def leads(self, epoch: int, safe: int) -> None:
        """Make another leader of A, whose log ends at ``safe``."""
        self.reach[A] = Reach("", safe, leader_epoch=epoch)

    def find_cut(self, partition: str, offset: int, leader_epoch: int) -> Future[Gone | None]:
        self.searches.append((partition, offset, leader_epoch))
        search: Future[Gone | None] = Future()
        end = self.log_ends.get(leader_epoch, offset)
        if self.held:
            return search
        if self.away:
            search.set_exception(UnavailableError("no answer"))
        elif end >= offset:
            search.set_result(None)
        elif self.passes:
            search.set_result(Gone(end, offset, WHY))
        else:
            search.set_exception(CutError(WHY, end))
        return search

    def describe(self, standstill: Standstill) -> str:
        return f"{standstill.kind} at {standstill.offset} of {standstill.acked}: {standstill.why}"


class World:
    """A flow of A and B; ``read`` has the ranges that were read, ``gaps`` the skipped ones."""

    def __init__(self, delivery: str = "at-least-once") -> None:
        self.store = new_cluster()
        text = (
            "flow: web\nsources: [kafka: {brokers: ['a:1'], topics: [orders]}]\n"
            f"delivery: {delivery}\nsinks: [files: {{path: /lake}}]\n"
        )
        apply_flow(Operator(self.store, "test", "", 0.0), text)
        found = Registered(partitions={A: Partition(), B: Partition()})
        self.store.write(paths.partitions("web"), found, ANY)
        self.spec = parse_flow(text)
        self.servers = Servers({A: Reach("", 60, leader_epoch=2), B: Reach("", 5, leader_epoch=2)})
        self.partitions = Partitions(self.servers, lambda: self.servers.now)
        self.intent: Literal["before"] | None = None
        self.read: list[Range] = []
        self.gaps: list[Range] = []
        self._epoch = 0

    def ack(self, name: str = A) -> Ack:
        found = self.store.read(paths.ack("web", "main", name))
        assert found is not None
        return found.value

    @property
    def trouble(self) -> str | None:
        return self.partitions.trouble

    def claim(self) -> ClaimedTask:
        self._epoch += 1
        self.partitions.open(self.spec)
        return ClaimedTask(
            Assignment("web", "collect.0", self._epoch, 1, "", (A, B)),
            self.store,
            Publisher(self.store, gap_seconds=0.0),
            ScriptedPipeline(self.spec, intent=self.intent),
            self.partitions,
            size=BatchSize(1000),
        )

    def go_on(self, task: ClaimedTask, turns: int = 8) -> list[Batch]:
        """Run two concurrent batches, as the runner does."""
        batches = []
        for _ in range(turns):
            if task.may_start and task.backlog(eager=True).due_seconds is not None:
                batch = task.start()
                if batch is not None:
                    batches.append(batch)
                    continue
            if task.running:
                task.settle(batches[len(self.done(batches))], [Written(0)])
                task.commit()
        while task.running:
            task.settle(batches[len(self.done(batches))], [Written(0)])
            task.commit()
        for batch in batches:
            self.gaps += [gap.reported for gap in batch.gaps]
            self.read += [] if batch.gaps else [replace(r, leader_epoch=None) for r in batch.ranges]
        return batches

    @staticmethod
    def done(batches: list[Batch]) -> list[Batch]:
        return [batch for batch in batches if batch.outcome is not None]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_events_at_acked_offsets_of_a_cut_log_are_one_counted_gap(delivery: str) -> None:
    world = World(delivery)
    world.go_on(world.claim())
    assert world.ack() == Ack(epoch=1, offset=60, leader_epoch=2)
    world.servers.leads(4, 100)
    world.servers.log_ends = {2: 40}
    world.read.clear()
    first, *_ = world.go_on(world.claim())
    assert (first.gone, first.events) == (20, 0)
    assert world.gaps == [Range(A, 40, 60)]
    assert [(piece.start, piece.end) for piece in world.read if piece.partition == A] == [(60, 100)]
    assert world.ack() == Ack(epoch=2, offset=100, leader_epoch=4)
    world.servers.leads(4, 110)
    world.go_on(world.claim())
    assert world.gaps == [Range(A, 40, 60)], "it is recorded once"
    assert world.servers.searches == [(A, 60, 2)]
    (record,) = first.gaps
    assert record.reason == f"gap: the events of {A} from 40 to 59: {WHY}"
    told: list[str] = []
    events: list[pa.RecordBatch] = []

    def refuse(refused: pa.RecordBatch, reasons: Sequence[str]) -> None:
        events.append(refused)
        told.extend(reasons)

    columns = [("journal", pa.string()), ("seq", pa.int64()), (identity.JOURNAL, pa.string())]
    stage = RefuseGaps.of(first.gaps, pa.schema(columns))
    nothing = pa.RecordBatch.from_pylist([], pa.schema([]))
    assert list(stage(iter([nothing]), refuse)) == []
    record_id = {identity.JOURNAL: f"{A}.cut-60"}
    assert [each.to_pylist() for each in events] == [[{"journal": A, "seq": 40, **record_id}]]
    assert told == [record.reason]


def test_flow_that_does_not_pass_over_a_cut_is_blocked_in_that_partition_only() -> None:
    world = World()
    world.servers.passes = False
    world.go_on(world.claim())
    world.servers.leads(4, 100)
    world.servers.reach[B] = Reach("", 9, leader_epoch=2)
    world.servers.log_ends = {2: 40}
    world.read.clear()
    world.go_on(world.claim())
    assert [(piece.partition, piece.start, piece.end) for piece in world.read] == [(B, 5, 9)]
    assert world.trouble == f"lost at 40 of 60: {WHY}"
    assert world.ack() == Ack(epoch=2, offset=60, leader_epoch=2)
    led_by_old = Reach("", 100, leader_epoch=6)
    world.servers.reach[A], world.servers.log_ends = led_by_old, {2: 60}
    world.go_on(world.claim())
    assert world.ack().offset == 100
    assert not world.trouble


def test_leader_with_all_acked_events_is_compared_once_and_read_on() -> None:
    world = World()
    task = world.claim()
    world.go_on(task)
    world.servers.leads(4, 100)
    world.go_on(task)
    world.servers.leads(4, 120)
    world.go_on(task)
    assert world.servers.searches == [(A, 60, 2)]
    assert (world.gaps, world.ack()) == ([], Ack(epoch=1, offset=120, leader_epoch=4))


def test_cut_within_a_claim_is_found_below_batches_that_are_not_acked_yet() -> None:
    world = World()
    task = world.claim()
    batch = task.start()
    assert batch is not None
    world.servers.leads(4, 100)
    world.servers.log_ends = {2: 40}
    gap = task.start()
    assert gap is not None
    assert [one.reported for one in gap.gaps] == [Range(A, 40, 60)]
    for each in (batch, gap):
        task.settle(each, [Written(0)])
        task.commit()
    assert world.ack() == Ack(epoch=1, offset=60, leader_epoch=4)


def test_nothing_is_compared_before_there_is_an_event_to_read() -> None:
    world = World()
    task = world.claim()
    world.go_on(task)
    world.servers.leads(4, 60)
    world.go_on(task)
    world.servers.leads(6, 60)
    world.go_on(task)
    assert world.servers.searches == []
    world.servers.leads(6, 61)
    world.go_on(task)
    assert world.servers.searches == [(A, 60, 2)]


def test_partition_waits_for_the_comparison_and_others_do_not() -> None:
    world = World()
    world.servers.held = True
    world.go_on(world.claim())
    world.servers.leads(4, 100)
    world.servers.reach[B] = Reach("", 9, leader_epoch=2)
    task = world.claim()
    world.go_on(task)
    assert (world.ack(A).offset, world.ack(B).offset) == (60, 9)
    assert not task.caught_up
    assert not world.trouble
    assert len(world.servers.searches) == 1


def test_comparison_that_fails_is_tried_again_after_a_while() -> None:
    world = World()
    world.servers.away = True
    world.go_on(world.claim())
    world.servers.leads(4, 100)
    task = world.claim()
    world.go_on(task)
    assert world.trouble == "unanswered at 60 of 60: no answer"
    assert (world.ack().offset, len(world.servers.searches)) == (60, 1)
    world.servers.away = False
    world.servers.now += LOOK_SECONDS
    world.go_on(task)
    assert world.ack().offset == 100
    assert not world.trouble


def test_cut_before_a_repeated_decided_batch_is_recorded_behind_it() -> None:
    world = World()
    world.intent = "before"
    world.go_on(world.claim())
    world.servers.leads(2, 80)
    assert world.claim().start() is not None, "it is decided, and never written"
    world.servers.leads(4, 100)
    world.servers.log_ends = {2: 40}
    world.go_on(world.claim(), turns=20)
    assert world.gaps == [Range(A, 40, 80)]
    assert world.ack() == Ack(epoch=3, offset=100, leader_epoch=4)


def test_ack_without_a_leader_epoch_is_not_compared() -> None:
    """An older collector has written it, or an operator."""
    world = World()
    world.servers.reach[A] = Reach("", 60)
    world.go_on(world.claim())
    assert world.ack().leader_epoch is None
    world.servers.leads(4, 100)
    world.go_on(world.claim())
    assert (world.servers.searches, world.ack().leader_epoch) == ([], 4)
