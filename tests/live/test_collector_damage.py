"""A task of two journals, one of them damaged: real ZooKeeper, Spark and files, until an operator
has repaired it. Every event that is left is in the lake once, and acks never pass damage."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import flight
from pyspark.sql import SparkSession

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.status import Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Reach
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.input import JournalPositions
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.connectors.journals.reader import READ_SECONDS, JournalReader
from flumeng.connectors.ranged.positions import Probes
from flumeng.control.commands.acks import advance_acks
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import journals
from flumeng.control.zookeeper import ANY, Store, tree
from flumeng.events.journal_names import node_of
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.repair import repair
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import CorruptError
from tests.testkit.cluster import add_flow
from tests.testkit.collector import TASK
from tests.testkit.journal import numbered_events
from tests.testkit.store import FakeStore
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Journal as JournalRecord
from zkschema.records import LiveNode

BAD = "web.n1.0.00000000"
GOOD = "web.n2.0.00000000"
ROWS, FRAMES = 50, 40
EVENTS = ROWS * FRAMES


class Cluster:
    """Two nodes with a journal each, and a task that reads both."""

    def __init__(self, store: Store, spark: SparkSession, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.statuses: list[Status] = []
        self.journals: dict[str, Journal] = {}
        self.servers: dict[str, JournalServer] = {}
        self.hanging: dict[str, Any] = {}
        tree.init(store)
        add_flow(store)
        for name in (BAD, GOOD):
            self.journals[name] = Journal.create(folder, name, segment_bytes=50_000)
            self.append(name, FRAMES)
            self.serve(name)
        spec = parse_flow(
            "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], delivery: exactly-once, "
            f"batch: {{seconds: 0.1, events: 700}}, sinks: [files: {{path: '{folder}/lake/x'}}]}}"
        )
        self.watcher, self.probes = PositionWatcher(Addresses(store)), Probes("journals")
        around = Surroundings(
            store=store,
            publisher=Publisher(store),
            scheduler=Scheduler(),
            jobs=Jobs(SparkEngine(spark), 2, on_stuck=pytest.fail),
            build=lambda _: SparkPipeline(spark, spec, TASK, JournalReader()),
            positions=lambda wake: JournalPositions(self.watcher, self.probes, wake),
            report=lambda _, status: self.statuses.append(status),
        )
        self.task = Runner(Assignment("web", "collect.0", 1, 1, "", (BAD, GOOD)), around)

    def append(self, name: str, frames: int) -> None:
        log = self.journals[name]
        for _ in range(frames):
            log.append(numbered_events(log.next_seq, ROWS, body_bytes=200))
        log.sync()

    def serve(self, name: str) -> None:
        server = JournalServer(
            "127.0.0.1", journals=lambda: {name: self.hanging.get(name, self.journals[name])}
        )
        self.servers[name] = server
        register(self.store, name, server.address)

    def damage(self, name: str, *frames: int) -> None:
        """Flip a bit in the events of these frames."""
        place = 0
        for file in sorted((self.folder / name).glob("*.segment")):
            content = bytearray(file.read_bytes())
            for at in range(0, len(content), 64):
                if content[at : at + 4] == b"FLFR":
                    content[at + 200] ^= 1 if place in frames else 0
                    place += 1
            file.write_bytes(content)

    def repair(self, name: str, *, accept_loss: bool) -> tuple[tuple[int, int], ...]:
        """The node is stopped, `flumeng journal repair` is run, and the node is started."""
        self.servers.pop(name).stop()
        self.journals.pop(name).close()
        lost = repair(self.folder / name, accept_loss=accept_loss).lost
        self.journals[name] = Journal.open(self.folder / name)
        self.serve(name)
        return lost

    def acks(self) -> tuple[int, int]:
        """Those of BAD and GOOD."""
        found = self.store.read_many([paths.ack("web", CURSOR_MAIN, name) for name in (BAD, GOOD)])
        bad, good = (ack.value.offset if ack else 0 for ack in found)
        return bad, good

    def said(self) -> str:
        return str(self.statuses[-1].error)

    def check_lake(self, bad: list[int], good: list[int]) -> None:
        """After the last commit the lake has each of these events once, with its body."""
        wait_for(lambda: self.store.children(paths.commits("web")) == [], "the last commit")
        table = ds.dataset(self.folder / "lake", format="parquet").to_table()
        found = {(row["journal"], row["seq"]): row["body"] for row in table.to_pylist()}
        assert len(found) == table.num_rows
        assert sorted(found) == [(BAD, seq) for seq in bad] + [(GOOD, seq) for seq in good]
        assert all(int(body.rstrip(b".")) == seq for (_, seq), body in found.items())

    def close(self) -> None:
        self.task.cancel()
        assert self.task.join(PATIENCE_SECONDS)
        self.watcher.close()
        self.probes.close()
        for server in self.servers.values():
            server.stop()
        for journal in self.journals.values():
            journal.close()


def register(store: Store, journal: str, address: str) -> None:
    """Register the journal as its node does when it starts."""
    node = node_of(journal)
    record = JournalRecord(flow="web", node=node, primary=node, term=1, in_sync=(node,))
    store.write(paths.journal(journal), record, ANY)
    live = LiveNode(uuid="", incarnation="", addresses=(address,), pid=0, version="", since=0)
    store.write(paths.live_node(node), live, ANY)


@pytest.fixture
def cluster(store: Store, spark: SparkSession, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(store, spark, tmp_path)
    yield cluster
    cluster.close()


def test_damaged_journal_is_blocked_until_it_is_repaired(cluster: Cluster) -> None:
    cluster.damage(BAD, 20)
    place = 20 * ROWS
    cluster.task.start()
    wait_for(lambda: cluster.acks() == (place, EVENTS), "all before the damage, all of the other")
    wait_for(lambda: f"journal {BAD} stops at seq {place}: " in cluster.said(), "the status")
    assert "checksum does not match; run on node n1: `flumeng journal verify`" in cluster.said()

    cluster.append(GOOD, 1)
    cluster.append(BAD, 1)
    wait_for(lambda: cluster.acks() == (place, EVENTS + ROWS), "the other journal to go on")

    assert cluster.repair(BAD, accept_loss=False) == ((place, place + ROWS),)
    wait_for(
        lambda: "must be accepted; run on node n1: `flumeng journal repair" in cluster.said(), "it"
    )
    assert cluster.acks() == (place, EVENTS + ROWS)

    cluster.repair(BAD, accept_loss=True)
    wait_for(lambda: cluster.acks() == (EVENTS + ROWS, EVENTS + ROWS), "what is left")
    wait_for(lambda: cluster.statuses[-1].error is None, "the status")
    assert {status.state for status in cluster.statuses} == {"running"}
    every = list(range(EVENTS + ROWS))
    cluster.check_lake([*every[:place], *every[place + ROWS :]], every)


def test_accepted_loss_is_passed_over_and_accounted_for(cluster: Cluster) -> None:
    """At the beginning, in the middle, over several batches, and at the very end."""
    gone = [0, 7, *range(15, 35), FRAMES - 1]
    cluster.damage(BAD, *gone)
    lost = cluster.repair(BAD, accept_loss=True)
    assert [seq // ROWS for start, end in lost for seq in range(start, end, ROWS)] == gone
    cluster.task.start()
    wait_for(lambda: cluster.acks() == (EVENTS, EVENTS), "acks to pass the losses")
    every = list(range(EVENTS))
    cluster.check_lake([seq for seq in every if seq // ROWS not in gone], every)
    assert {status.error for status in cluster.statuses} == {None}
    row = journals.journal(cluster.store, journals.ask_worker, time.time(), BAD)
    assert (row.lost, row.waits_at, row.safe) == (len(gone) * ROWS, None, EVENTS)


def test_journal_whose_ack_was_lost_continues_from_its_floor(cluster: Cluster) -> None:
    cluster.journals[BAD].trim(EVENTS - 1)
    floor = journals.journal(cluster.store, journals.ask_worker, time.time(), BAD).floor
    assert floor is not None
    assert 0 < floor < EVENTS
    cluster.task.start()
    wait_for(lambda: cluster.acks() == (0, EVENTS), "all of the other")
    wait_for(lambda: f"begins at seq {floor}, but only seq 0 is acked" in cluster.said(), "it")
    advance_acks(Operator(cluster.store, "ann", "", 0.0), {BAD: floor})
    wait_for(lambda: cluster.acks() == (EVENTS, EVENTS), "what is left")
    wait_for(lambda: cluster.statuses[-1].error is None, "the status")
    assert {status.state for status in cluster.statuses} == {"running"}
    every = list(range(EVENTS))
    cluster.check_lake(every[floor:], every)


class Hanging:
    """A journal that reports its end and hangs in each read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.reads = 0
        self.go_on = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def read_frames(self, start: int, end: int) -> Iterator[Any]:
        self.reads += 1
        self.go_on.wait()
        yield from self._journal.read_frames(start, end)


def test_hanging_reads_cost_their_own_journal_only(cluster: Cluster) -> None:
    """One batch ends with it, a few seconds later; all others are without it."""
    hanging = cluster.hanging[BAD] = Hanging(cluster.journals[BAD])
    try:
        began = time.monotonic()
        cluster.task.start()
        wait_for(lambda: cluster.acks() == (0, EVENTS), "all of the other")
        assert time.monotonic() - began < READ_SECONDS + 45, "it waited for the hung read"
        assert f"journal {BAD} waits at seq 0: " in cluster.said()
        began = time.monotonic()
        cluster.append(GOOD, FRAMES)
        wait_for(lambda: cluster.acks() == (0, 2 * EVENTS), "what came then")
        assert time.monotonic() - began < READ_SECONDS + 20
        assert hanging.reads <= 8, "batches have it again and again"
        assert cluster.servers[BAD].address in cluster.said()
    finally:
        hanging.go_on.set()
    wait_for(lambda: cluster.acks() == (EVENTS, 2 * EVENTS), "what had waited")
    wait_for(lambda: cluster.statuses[-1].error is None, "the status")
    assert {status.state for status in cluster.statuses} == {"running"}
    cluster.check_lake(list(range(EVENTS)), list(range(2 * EVENTS)))


class Babbler(flight.FlightServerBase):  # type: ignore[misc]
    """Answers each request with meaningless bytes."""

    def do_action(self, _context: Any, _action: Any) -> Iterator[Any]:
        return iter([flight.Result(b'{"web.n1.0.00000000": {"sfae": 7}}')])

    def do_get(self, _context: Any, _ticket: Any) -> Any:
        batch = pa.record_batch([pa.array([b"babble"])], ["frame"])
        return flight.GeneratorStream(batch.schema, iter([batch]))


def test_server_with_malformed_answers_stops_its_own_journals_only(tmp_path: Path) -> None:
    store = FakeStore()
    tree.init(store)
    good = Journal.create(tmp_path, GOOD)
    good.append(numbered_events(0, ROWS))
    good.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {GOOD: good})
    with Babbler("grpc://127.0.0.1:0") as babbler:
        register(store, BAD, f"127.0.0.1:{babbler.port}")
        register(store, GOOD, server.address)
        watcher = PositionWatcher(Addresses(store))
        probes = Probes("journals")
        positions = JournalPositions(watcher, probes)
        wait_for(lambda: len(positions.of([BAD, GOOD])) == 2, "both servers")
        found = positions.of([BAD, GOOD])
        assert found[GOOD] == Reach(server.address, ROWS, term=found[GOOD].term)
        assert "this flumeng cannot read the answer of" in found[BAD].trouble
        positions.probe(GOOD, server.address, 0, ROWS).result(PATIENCE_SECONDS)
        with pytest.raises(CorruptError):
            positions.probe(BAD, found[BAD].address, 0, ROWS).result(PATIENCE_SECONDS)
        watcher.close()
        probes.close()
    server.stop()
    good.close()
