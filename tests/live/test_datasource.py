"""The data source in a real Spark over real journals and a real ZooKeeper: each event is there,
whichever process ends in between, and journals keep the events that a cursor has not read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery

from flumeng.agent.node.registration import Identity, Registration
from flumeng.agent.pyspark import FlumengDataSource, commit, next_offsets
from flumeng.control.commands.acks import delete_cursor
from flumeng.control.commands.cursors import Cursor
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Store, tree
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import ConflictError, UserError
from tests.testkit.cluster import acks_of, add_journal
from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.testkit.light_nodes import ClaimsInMemory
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths, records

SEGMENT_BYTES = 20_000
SIGN = ("a", "", 0.0)
TEXT = flow_text("web", 'syslog: {listen: "127.0.0.1:0"}')
Event = tuple[str, int]


class Flow:
    """A flow ``web`` whose journals are served by this process, a server for each node."""

    def __init__(self, hosts: str, store: Store, folder: Path) -> None:
        self.hosts, self.store, self.folder = hosts, store, folder
        self.journals: dict[str, Journal] = {}
        self.servers: dict[str, JournalServer] = {}
        tree.init(store)
        apply_flow(Operator(store, *SIGN), TEXT)

    def journal(self, node: str) -> str:
        name = f"web.{node}.0.{len(self.journals):08x}"
        self.journals[name] = Journal.create(
            self.folder / "journals" / node, name, segment_bytes=SEGMENT_BYTES
        )
        self.serve(node)
        self.register(name, node)
        return name

    def register(self, name: str, node: str) -> None:
        add_journal(self.store, name, flow="web", node=node)

    def serve(self, node: str) -> None:
        mine = {name: j for name, j in self.journals.items() if name.split(".")[1] == node}
        if node in self.servers:
            self.servers.pop(node).stop()
        self.servers[node] = JournalServer("127.0.0.1", journals=lambda: mine)
        self.announce(node, self.servers[node].address)

    def announce(self, node: str, address: str) -> None:
        live = records.LiveNode(
            uuid="", incarnation="", addresses=(address,), pid=0, version="", since=0
        )
        path = paths.live_node(node)
        self.store.write(path, live, ANY if self.store.exists(path) else ABSENT)

    def append(self, name: str, events: int) -> None:
        log = self.journals[name]
        columns = [
            pa.array([b"event %d" % n for n in range(log.next_seq, log.next_seq + events)]),
            pa.array(np.arange(events) * 1_000_000, EVENT_SCHEMA.field("ts").type),
            pa.array(["192.0.2.1"] * events),
            pa.array([[("a", "b")]] * events, EVENT_SCHEMA.field("attrs").type),
        ]
        log.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
        log.sync()

    def ack_main(self, offsets: dict[str, int]) -> None:
        """Ack the events below, as a collector that has delivered them."""
        for name, offset in offsets.items():
            path = paths.ack("web", "main", name)
            expect = ANY if self.store.exists(path) else ABSENT
            self.store.write(path, records.Ack(epoch=1, offset=offset), expect)

    def needed(self, node: str) -> dict[str, int]:
        """The offsets up to which the node's journals may be trimmed."""
        identity = Identity(node, "u", ("ingest",), "", {})
        return dict(Registration(self.store, identity, ClaimsInMemory()).journals.acks().acks)

    def trim(self, node: str) -> None:
        """Trim the events that all cursors have read, as the node does."""
        for name, offset in self.needed(node).items():
            self.journals[name].trim(offset)

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()
        for journal in self.journals.values():
            journal.close()


@pytest.fixture
def flow(hosts: str, store: Store, tmp_path: Path) -> Iterator[Flow]:
    flow = Flow(hosts, store, tmp_path)
    yield flow
    flow.close()


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(FlumengDataSource)
    return spark


class Reader:
    """A stream of flow ``web`` under a cursor.

    ``batches`` are the completely delivered ones by number: Spark repeats one when it has not
    recorded its end. The first ``failing`` deliveries fail.
    """

    def __init__(self, spark: SparkSession, flow: Flow, **options: object) -> None:
        self._spark, self._flow, self._options = spark, flow, options
        self.batches: dict[tuple[str, int], list[Event]] = {}
        self.replayed: set[tuple[str, int]] = set()
        self.failing = 0
        self.query: StreamingQuery | None = None

    def start(self, checkpoint: Path) -> StreamingQuery:
        reader = self._spark.readStream.format("flumeng")
        given = {"zookeeper": self._flow.hosts, "flow": "web", "cursor": "report", **self._options}
        for name, value in given.items():
            reader = reader.option(name, str(value))
        take = partial(self._take, str(checkpoint))
        writer = reader.load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(checkpoint))
        self.query = writer.trigger(processingTime="100 milliseconds").start()
        return self.query

    def _take(self, checkpoint: str, events: DataFrame, number: int) -> None:
        rows = events.select("journal", "seq", "replayed").collect()
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the sink is away")
        found, batch = [(row.journal, row.seq) for row in rows], (checkpoint, number)
        assert self.batches.get(batch, found) == found, "a batch is repeated exactly"
        self.batches[batch] = found
        if any(row.replayed for row in rows):
            self.replayed.add(batch)

    def stop(self) -> None:
        assert self.query is not None
        self.query.stop()

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches.values() for event in batch]

    def wait_for(self, count: int) -> None:
        """Wait until so many different events were delivered, or the query has failed."""
        query = self.query
        assert query is not None
        wait_for(lambda: query.exception() or len(set(self.events)) >= count, "events are missing")
        if (error := query.exception()) is not None:
            raise error
        assert len(set(self.events)) == count


def error_of(query: StreamingQuery) -> str:
    """The error that ended it."""
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(int(PATIENCE_SECONDS))
    return str(raised.value)


def batch(spark: SparkSession, flow: Flow, **options: object) -> DataFrame:
    reader = spark.read.format("flumeng").option("zookeeper", flow.hosts).option("flow", "web")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def offsets(flow: Flow, cursor: str = "report") -> dict[str, int]:
    return acks_of(flow.store, "web", cursor)


def test_batch_reads_whole_journals_and_cursor_continues_behind_the_commit(
    spark: SparkSession, flow: Flow
) -> None:
    a, b, c = flow.journal("n1"), flow.journal("n1"), flow.journal("n2")
    assert batch(spark, flow).collect() == []
    for name in (a, b, c):
        flow.append(name, 500)
    for _ in range(2):
        flow.append(c, 60_000)
    whole = batch(spark, flow)
    counts = {row.journal: row["count"] for row in whole.groupBy("journal").count().collect()}
    assert counts == {a: 500, b: 500, c: 120_500}
    (first,) = whole.where(f"journal = '{a}' AND seq = 0").collect()
    assert (bytes(first.body), first.host, first.attrs, first.replayed) == (
        b"event 0", "192.0.2.1", {"a": "b"}, False,
    )  # fmt: skip
    events = batch(spark, flow, cursor="report", keepSeconds=7000).persist()
    read = next_offsets(events)
    assert read == {a: 500, b: 500, c: 120_500}
    assert offsets(flow) == {}, "to read moves nothing"
    flow.append(a, 100)
    flow.ack_main({a: 600, b: 500, c: 120_500})
    assert flow.needed("n1") == {}, "the cursor keeps what is not committed"
    commit(read, zookeeper=flow.hosts, flow="web", cursor="report")
    commit({a: 7}, zookeeper=flow.hosts, flow="web", cursor="report")
    assert offsets(flow) == read, "no ack goes back"
    lease = flow.store.read(paths.lease("web", "report"))
    assert lease is not None
    assert lease.value.keep_seconds == 7000
    rest = batch(spark, flow, cursor="report").collect()
    assert {(row.journal, row.seq) for row in rest} == {(a, seq) for seq in range(500, 600)}
    assert flow.needed("n1") == {a: 500, b: 500}


def test_given_schema_is_read_and_nothing_else(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    a = flow.journal("n1")
    flow.append(a, 5)
    reader = spark.read.schema("seq bigint, host string").format("flumeng")
    options = {"zookeeper": flow.hosts, "flow": "web"}
    found = reader.options(**options).load()
    assert found.columns == ["seq", "host"]
    assert [tuple(row) for row in found.collect()] == [(seq, "192.0.2.1") for seq in range(5)]
    assert found.count() == 5
    stream = spark.readStream.schema("host string").format("flumeng").options(**options).load()
    written = stream.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/c")
    written.trigger(availableNow=True).start(f"{tmp_path}/out").awaitTermination()
    assert spark.read.parquet(f"{tmp_path}/out").groupBy("host").count().collect() == [
        ("192.0.2.1", 5)
    ]
    with pytest.raises(PySparkException) as raised:
        reader.schema("seq int").options(**options).load().count()
    assert "a flow has no column seq int" in str(raised.value)


@pytest.mark.long
def test_stream_with_its_checkpoint_has_each_event_once(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    a = flow.journal("n1")
    flow.append(a, 1000)
    reader = Reader(spark, flow, maxEventsPerBatch=300)
    reader.start(tmp_path / "checkpoint")
    reader.wait_for(1000)
    if hasattr(DataSourceStreamReader, "getDefaultReadLimit"):  # Spark 4.2 and newer
        assert max(map(len, reader.batches.values())) <= 300
    b = flow.journal("n2")
    flow.append(b, 200)
    reader.wait_for(1200)
    reader.stop()
    before = offsets(flow)
    assert before.get(a, 0) + before.get(b, 0) < 1200, "Spark commits a batch with the next one"
    flow.append(a, 100)
    flow.append(b, 100)
    reader.failing = 1
    assert "the sink is away" in error_of(reader.start(tmp_path / "checkpoint"))
    flow.append(a, 50)
    reader.start(tmp_path / "checkpoint")
    reader.wait_for(1450)
    reader.stop()
    assert len(reader.events) == 1450, "an event came twice"
    assert 0 < len(reader.replayed) < len(reader.batches), "a batch that Spark runs again says so"


@pytest.mark.long
def test_stream_without_its_checkpoint_continues_at_the_cursor(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    a = flow.journal("n1")
    reader = Reader(spark, flow)
    reader.start(tmp_path / "one")
    for step in range(4):
        flow.append(a, 500)
        reader.wait_for(500 * (step + 1))
    wait_for(lambda: offsets(flow).get(a, 0) >= 1500, "the cursor does not follow")
    reader.stop()
    flow.ack_main({a: 2000})
    flow.trim("n1")
    assert 0 < flow.journals[a].floor <= 1500
    flow.append(a, 500)
    reader.start(tmp_path / "two")
    reader.wait_for(2500)
    reader.stop()
    assert len(reader.events) <= 3000, "no more than the last batch comes again"
    assert (str(tmp_path / "two"), 0) in reader.replayed


@pytest.mark.long
def test_frozen_server_delays_the_events_of_its_own_journals_only(
    spark: SparkSession, flow: Flow, tmp_path: Path, worker: WorkerProcess
) -> None:
    a = flow.journal("n1")
    flow.append(a, 100)
    worker.run(TEXT)
    with worker.connect("web") as client:
        client.sendall(b"<13>1 - h a p m - x\n" * 100)
    worker.wait_for_events("web", 100)
    (name,) = worker.journals("web")
    flow.register(name, "here")
    flow.announce("here", worker.ready["address"])
    reader = Reader(spark, flow)
    reader.start(tmp_path / "checkpoint")
    reader.wait_for(200)
    os.kill(worker.process.pid, signal.SIGSTOP)
    try:
        flow.append(a, 100)
        reader.wait_for(300)
    finally:
        os.kill(worker.process.pid, signal.SIGCONT)
    with worker.connect("web") as client:
        client.sendall(b"<13>1 - h a p m - x\n" * 100)
    reader.wait_for(400)
    reader.stop()
    assert len(reader.events) == 400


@pytest.mark.long
def test_second_reader_of_a_cursor_and_removed_cursor_are_reported(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    a = flow.journal("n1")
    flow.append(a, 2000)
    reader = Reader(spark, flow, maxEventsPerBatch=500)
    query = reader.start(tmp_path / "checkpoint")
    reader.wait_for(2000)
    other = Cursor.take(flow.store, "web", "report", keep_seconds=60.0, begin=dict)
    flow.append(a, 1000)
    assert "two readers cannot share one" in error_of(query)
    query = reader.start(tmp_path / "checkpoint")
    reader.wait_for(3000)
    with pytest.raises(ConflictError, match="was taken by"):
        other.commit({a: 3000})
    delete_cursor(Operator(flow.store, *SIGN), "web", "report")
    flow.append(a, 1000)
    assert "was removed" in error_of(query)
    for _ in range(5):
        flow.append(a, 1000)
    flow.ack_main({a: 9000})
    flow.trim("n1")
    assert flow.journals[a].floor > 4000
    flow.append(a, 10)
    said = error_of(reader.start(tmp_path / "checkpoint"))
    assert "events are lost for this reader" in said
    assert a in said
    kept = 9010 - flow.journals[a].floor
    late = Reader(spark, flow, failOnDataLoss=False)
    late.start(tmp_path / "checkpoint")
    late.wait_for(kept)
    late.stop()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"flow": "wbe"}, 'there is no flow "wbe"'),
        ({"flow": "web", "cursor": "main"}, "choose another name"),
        ({"flow": "web", "cursr": "x"}, 'no option "cursr"'),
        ({"flow": "web", "cursor": "web"}, "a flow is named web"),
    ],
)
def test_unreadable_source_is_reported(
    spark: SparkSession, flow: Flow, options: dict[str, str], why: str
) -> None:
    reader = spark.read.format("flumeng").option("zookeeper", flow.hosts).options(**options)
    with pytest.raises(PySparkException) as raised:
        reader.load().count()
    assert why in str(raised.value)


def test_commit_of_an_unknown_cursor_is_refused(flow: Flow) -> None:
    with pytest.raises(UserError, match="read the flow with it first"):
        commit({"j": 1}, zookeeper=flow.hosts, flow="web", cursor="report")
