"""Several inputs behind one: each partition goes where its name says, and no other notices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.status import Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.config import FlowSpec, parse_flow
from flumeng.connectors.api.ranged import Range, Reach, Standstill, UnreadableError
from flumeng.connectors.ranged.reading import ReadSplits
from flumeng.connectors.ranged.routing import UNKNOWN, Inputs, RoutedPositions
from flumeng.control.snapshot.partitions import JOURNAL, input_of
from flumeng.control.zookeeper import ABSENT
from flumeng.events import identity
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import add_flow, new_cluster
from tests.testkit.collector import (
    Restless,
    ScriptedEngine,
    ScriptedPipeline,
    StillPositions,
    register,
)
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Partition, Partitions

SPEC = parse_flow("{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}")
HERE, THERE, NEWER = "web.n1.0.00000000", "orders.3@broker", "orders.3@comet"
KEY = pa.field("key", pa.binary())


@dataclass
class FakeReader:
    """Yields an event for each even offset of a range: the odd ones are gaps."""

    more: tuple[pa.Field, ...] = ()
    away: bool = False

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*READ_SCHEMA, *self.more])

    @property
    def modules(self) -> frozenset[str]:
        return frozenset(field.name for field in self.more)

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        for offset in range(piece.start, piece.end):
            if offset % 2:
                continue
            known = {"journal": piece.partition, "seq": offset, "host": address, "key": b"k"}
            row = {name: known.get(name) for name in self.schema.names}
            yield pa.RecordBatch.from_pylist([row], schema=self.schema)
        if self.away:
            raise UnavailableError(f"{address} does not answer")


@dataclass
class FakeInput(StillPositions):
    """An input with its own positions. ``asked`` are the partitions that were requested."""

    ends: dict[str, int]
    reads: FakeReader | None = field(default_factory=FakeReader)
    opened: int = 0
    closed: int = 0
    asked: list[Collection[str]] = field(default_factory=list)
    refreshed: list[Collection[str]] = field(default_factory=list)
    resting: bool = False
    limit: int = 0

    def rests(self) -> bool:
        return self.resting

    def rate(self) -> int:
        return self.limit

    def positions(self, wake: Callable[[], None]) -> FakeInput:
        del wake
        return self

    def reader(self, spec: FlowSpec) -> FakeReader | None:
        assert spec is SPEC
        return self.reads

    def open(self, spec: FlowSpec) -> None:
        assert spec is SPEC
        self.opened += 1

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        self.asked.append(partitions)
        return {name: Reach("a:1", self.ends[name]) for name in partitions if name in self.ends}

    def refresh(self, partitions: Collection[str]) -> None:
        self.refreshed.append(partitions)

    def describe(self, standstill: Standstill) -> str:
        return f"{standstill.partition}: {standstill.kind}"

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def journals() -> FakeInput:
    return FakeInput({HERE: 10})


@pytest.fixture
def broker() -> FakeInput:
    return FakeInput({THERE: 20}, FakeReader((KEY,)))


@pytest.fixture
def inputs(journals: FakeInput, broker: FakeInput) -> Inputs:
    return Inputs({JOURNAL: journals, "broker": broker})


@pytest.fixture
def positions(inputs: Inputs) -> RoutedPositions:
    positions = inputs.positions(lambda: None)
    positions.open(SPEC)
    return positions


@pytest.mark.parametrize(
    ("partition", "name"),
    [
        (HERE, JOURNAL),
        ("web.n.1.0.00000000", JOURNAL),
        (THERE, "broker"),
        ("odd@name.3@broker", "broker"),
        ("@broker", JOURNAL),
    ],
)
def test_input_of_a_partition_follows_from_its_name(partition: str, name: str) -> None:
    assert input_of(partition) == name


def test_each_input_gets_its_own_partitions_only(
    positions: RoutedPositions, journals: FakeInput, broker: FakeInput
) -> None:
    assert positions.of([HERE, THERE]) == {HERE: Reach("a:1", 10), THERE: Reach("a:1", 20)}
    assert (journals.asked, broker.asked) == ([{HERE}], [{THERE}])
    positions.refresh([THERE])
    assert (journals.refreshed, broker.refreshed) == ([], [{THERE}])
    assert positions.describe(Standstill("lost", THERE, 3, 4)) == f"{THERE}: lost"


def test_an_input_without_partitions_of_the_task_is_not_opened(
    positions: RoutedPositions, journals: FakeInput, broker: FakeInput
) -> None:
    assert positions.of([HERE]).keys() == {HERE}
    assert (journals.opened, broker.opened) == (1, 0)
    assert positions.of([THERE]).keys() == {THERE}
    assert (journals.closed, broker.opened) == (1, 1)


def test_input_without_positions_costs_the_others_nothing(
    positions: RoutedPositions, broker: FakeInput
) -> None:
    broker.ends.clear()
    assert positions.of([HERE, THERE]) == {HERE: Reach("a:1", 10)}


def test_partition_of_a_newer_version_stands_still_and_is_reported(
    positions: RoutedPositions,
) -> None:
    assert positions.of([HERE, NEWER]) == {
        HERE: Reach("a:1", 10),
        NEWER: Reach("", 0, trouble=UNKNOWN),
    }
    said = positions.describe(Standstill("nonsense", NEWER, 0, 0, UNKNOWN))
    assert said == f"partition {NEWER} stands still: {UNKNOWN}"
    assert positions.of([NEWER]).keys() == {NEWER}


def test_ended_claim_leaves_no_input_open(
    positions: RoutedPositions, journals: FakeInput, broker: FakeInput
) -> None:
    positions.of([HERE, THERE])
    positions.close()
    assert (journals.closed, broker.closed) == (1, 1)
    positions.open(SPEC)
    assert positions.of([HERE, THERE]).keys() == {HERE, THERE}
    assert (journals.opened, broker.opened) == (2, 2)


def read(inputs: Inputs, *ranges: Range, identified: bool = False) -> pa.Table:
    addresses = {HERE: "a:1", THERE: "b:1"}
    stage = ReadSplits(inputs.reader(SPEC), (ranges,), addresses, identified)
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    return pa.Table.from_batches(stage(iter([numbers])), stage.schema)


def test_a_batch_of_two_inputs_has_the_columns_of_both(inputs: Inputs) -> None:
    found = read(inputs, Range(HERE, 0, 4), Range(THERE, 7, 10), identified=True)
    rows = found.select(["journal", "seq", "host", "key", identity.SPLIT]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (HERE, 0, "a:1", None, 0),
        (HERE, 2, "a:1", None, 0),
        (THERE, 8, "b:1", b"k", 0),
    ]
    assert found.column(identity.JOURNAL).to_pylist() == found.column("journal").to_pylist()


def test_late_imports_of_every_input_are_declared(inputs: Inputs) -> None:
    assert inputs.reader(SPEC).modules == {"key"}


def test_single_input_keeps_its_own_schema(journals: FakeInput) -> None:
    assert read(Inputs({JOURNAL: journals}), Range(HERE, 0, 2)).schema == READ_SCHEMA


def test_range_of_gaps_only_has_no_events(inputs: Inputs) -> None:
    assert read(inputs, Range(THERE, 7, 8)).num_rows == 0


def test_read_failure_names_partition_and_offset(inputs: Inputs, broker: FakeInput) -> None:
    broker.reads = FakeReader((KEY,), away=True)
    with pytest.raises(UnreadableError, match=f"{THERE} is unavailable at 9: b:1") as raised:
        read(inputs, Range(THERE, 7, 9))
    assert (raised.value.partition, raised.value.offset) == (THERE, 9)


def test_flow_that_lost_its_source_cannot_read_its_remaining_partitions(
    inputs: Inputs, broker: FakeInput
) -> None:
    broker.reads = None
    with pytest.raises(UnreadableError, match="no longer has a source"):
        read(inputs, Range(THERE, 0, 1))
    assert read(inputs, Range(HERE, 0, 1)).num_rows == 1


@pytest.mark.slow
def test_task_of_two_inputs_acks_each_from_its_start(inputs: Inputs, broker: FakeInput) -> None:
    """Events that a broker has dropped already were never requested; its gaps are acked like
    events."""
    store = new_cluster()
    add_flow(store)
    register(store, "web", HERE)
    found = Partitions(partitions={THERE: Partition(start=5), NEWER: Partition()})
    store.write(paths.partitions("web"), found, ABSENT)
    statuses: list[Status] = []
    pipeline = ScriptedPipeline(SPEC)
    around = Surroundings(
        store=store,
        publisher=Publisher(store),
        scheduler=Scheduler(),
        jobs=Jobs(ScriptedEngine(), 2, on_stuck=pytest.fail),
        build=lambda _: pipeline,
        positions=lambda wake: Restless(inputs.positions(wake), wake),
        report=lambda _, status: statuses.append(status),
    )
    runner = Runner(Assignment("web", "collect.0", 1, 1, "", (HERE, THERE, NEWER)), around)
    runner.start()

    def acks() -> list[int | None]:
        wanted = [paths.ack("web", CURSOR_MAIN, name) for name in (HERE, THERE, NEWER)]
        return [ack.value.offset if ack else None for ack in store.read_many(wanted)]

    wait_for(lambda: acks() == [10, 20, 0])
    broker.ends[THERE] = 23
    wait_for(lambda: acks() == [10, 23, 0])
    wait_for(lambda: str(statuses[-1].error) == f"partition {NEWER} stands still: {UNKNOWN}")
    runner.cancel()
    assert runner.join(PATIENCE_SECONDS)
    read = [piece for batch in pipeline.batches for piece in batch if piece.partition == THERE]
    assert [(piece.start, piece.end) for piece in read] == [(5, 20), (20, 23)]


def test_flow_rests_when_all_its_inputs_do(
    positions: RoutedPositions, journals: FakeInput, broker: FakeInput
) -> None:
    assert not positions.rests()
    positions.of([HERE, THERE])
    journals.resting = True
    assert not positions.rests()
    broker.resting = True
    assert positions.rests()
    assert positions.rate() == 0
    journals.limit, broker.limit = 300, 200
    assert positions.rate() == 200
