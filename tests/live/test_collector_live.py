"""A real collector with real ZooKeeper and journals: killed, stopped, starved, and reassigned."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from flumeng.agent.node.protocol import Message, decode, encode
from flumeng.control.zookeeper import ABSENT, ANY, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from tests.testkit.cluster import add_flow
from tests.testkit.daemons import children_of, is_alive
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, LiveNode
from zkschema.records import Journal as JournalRecord

KILLS = 3


class Collector:
    """One collector process; ``statuses`` are its latest status messages."""

    def __init__(self, hosts: str, data: Path, environment: dict[str, str] | None = None) -> None:
        self.statuses: dict[str, Any] = {}
        self.said: list[Message] = []
        command = [sys.executable, "-m", "flumeng.agent.collector", "--zk", hosts, "--node", "n1"]
        self.log = data / f"collector-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--data", str(data)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            message = decode(line)
            self.said.append(message)
            if message["type"] == "status":
                self.statuses = message["tasks"]

    def tell(self, message: Message) -> None:
        assert self.process.stdin
        self.process.stdin.write(encode(message))
        self.process.stdin.flush()

    def configure(self, *tasks: Message) -> None:
        self.tell({"type": "configure", "number": 1, "tasks": list(tasks)})

    def status(self, key: str = "web/collect.0") -> dict[str, Any]:
        found: dict[str, Any] = self.statuses.get(key, {})
        return found

    def owns(self, key: str = "web/collect.0") -> bool:
        return self.status(key).get("state") == "running"

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        assert self.process.stdin and self.process.stdout
        code = self.process.wait(timeout=PATIENCE_SECONDS)
        self.process.stdin.close()
        self._reader.join()
        self.process.stdout.close()
        return code


class Cluster:
    """Plays master, node and ingest worker in the test's own process."""

    def __init__(self, hosts: str, store: Store, folder: Path) -> None:
        self.hosts, self.store, self.folder = hosts, store, folder
        self.journals: dict[str, Journal] = {}
        self.servers: dict[str, JournalServer] = {}
        self.collectors: list[Collector] = []
        tree.init(store)
        add_flow(store)

    def journal(self, node: str) -> str:
        """A served journal of ``node``."""
        name = f"web.{node}.0.{len(self.journals):08x}"
        self.journals[name] = Journal.create(self.folder / "journals" / node, name)
        self.serve(node)
        record = JournalRecord(flow="web", node=node, primary=node, term=1, in_sync=(node,))
        self.store.write(paths.journal(name), record, ABSENT)
        return name

    def serve(self, node: str) -> None:
        mine = {name: j for name, j in self.journals.items() if name.split(".")[1] == node}
        self.servers[node] = JournalServer("127.0.0.1", journals=lambda: mine)
        live = LiveNode(
            uuid="",
            incarnation="",
            addresses=(self.servers[node].address,),
            pid=0,
            version="",
            since=0,
        )
        self.store.write(paths.live_node(node), live, ANY)

    def append(self, journal: str, events: int) -> None:
        log = self.journals[journal]
        numbers = np.arange(log.next_seq, log.next_seq + events)
        columns = [
            pa.array([b"<13>1 - h a p m - event %d" % number for number in numbers], pa.binary()),
            pa.array(numbers * 1_000_000, EVENT_SCHEMA.field("ts").type),
            pa.array(["192.0.2.1"] * events),
            pa.array([[]] * events, EVENT_SCHEMA.field("attrs").type),
        ]
        log.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
        log.sync()

    def collector(self) -> Collector:
        data = self.folder / f"data-{len(self.collectors)}"
        data.mkdir()
        self.collectors.append(Collector(self.hosts, data))
        return self.collectors[-1]

    def task(self, *partitions: str, epoch: int = 1, **changes: Any) -> Message:
        spec = self.spec()
        task = {"flow": "web", "task": "collect.0", "epoch": epoch, "revision": 1, "spec": spec}
        return {**task, "partitions": list(partitions), "state": "running", **changes}

    def spec(self, sink: str = "", delivery: str = "exactly-once") -> str:
        sink = sink or f"files: {{path: '{self.folder}/lake/hour=%H'}}"
        return (
            "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
            f"delivery: {delivery}, batch: {{seconds: 0.1, events: 5000}}, sinks: [{sink}]}}"
        )

    def ack(self, journal: str) -> int:
        found = self.store.read(paths.ack("web", CURSOR_MAIN, journal))
        return found.value.offset if found else 0

    def drained(self) -> bool:
        return all(self.ack(name) == journal.safe for name, journal in self.journals.items())

    def check_exactly_once(self) -> None:
        wait_for(lambda: self.store.children(paths.commits("web")) == [], "the last commit")
        table = ds.dataset(self.folder / "lake", format="parquet").to_table(
            columns=["journal", "seq", "replayed"]
        )
        for name, journal in self.journals.items():
            seqs = table.filter(pa.compute.equal(table["journal"], name))["seq"].to_numpy()
            assert np.array_equal(np.sort(seqs), np.arange(journal.safe))
            assert self.ack(name) == journal.safe
        assert not any(table["replayed"].to_pylist())

    def close(self) -> None:
        for collector in self.collectors:
            if collector.process.poll() is None:
                collector.kill()
        for server in self.servers.values():
            server.stop()
        for journal in self.journals.values():
            journal.close()


@pytest.fixture
def cluster(hosts: str, store: Store, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(hosts, store, tmp_path)
    yield cluster
    cluster.close()


def family(pid: int) -> set[int]:
    """The processes below ``pid``."""
    below = {*children_of(pid)}
    return below.union(*(family(child) for child in below))


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]


def none_alive(pids: Iterable[int]) -> bool:
    return not any(map(is_alive, pids))


@pytest.mark.long
def test_every_event_is_in_the_lake_once_over_kills_at_random_moments(cluster: Cluster) -> None:
    chance = random.Random(4)
    names = [cluster.journal("n1"), cluster.journal("n2")]
    for number in range(KILLS):
        collector = cluster.collector()
        collector.configure(cluster.task(*names, epoch=1 + number // 2))
        wait_for(collector.owns, "the task to be owned")
        for _ in range(chance.randrange(1, 60)):
            cluster.append(chance.choice(names), chance.randrange(1, 4_000))
            time.sleep(0.03)
        below = family(collector.process.pid)
        collector.kill()
        wait_for(partial(none_alive, below), "JVM and workers to end")
    collector = cluster.collector()
    collector.configure(cluster.task(*names, epoch=KILLS))
    wait_for(cluster.drained, "all to be acked")
    collector.tell({"type": "stop", "drain_seconds": 10})
    assert collector.end() == 0
    cluster.check_exactly_once()
    assert list((cluster.folder / "lake" / "_flumeng").iterdir()) == []


@pytest.mark.long
def test_collector_paused_past_its_epoch_is_fenced_and_spoils_nothing(cluster: Cluster) -> None:
    name = cluster.journal("n1")
    sleeper = cluster.collector()
    sleeper.configure(cluster.task(name, epoch=1))
    wait_for(sleeper.owns, "the task to be owned")
    for _ in range(20):
        cluster.append(name, 2_000)
        time.sleep(0.02)
    wait_for(lambda: cluster.ack(name) > 0, "the first ack")
    sleeper.process.send_signal(signal.SIGSTOP)
    successor = cluster.collector()
    successor.configure(cluster.task(name, epoch=2))
    wait_for(cluster.drained, "the successor to ack all")
    cluster.append(name, 1_000)
    sleeper.process.send_signal(signal.SIGCONT)
    cluster.append(name, 1_000)
    wait_for(lambda: sleeper.status()["state"] == "stopped", "the sleeper to notice")
    wait_for(cluster.drained, "the successor to ack the rest")
    assert sleeper.status()["error"] == "superseded"
    assert sleeper.status()["partitions"] == []
    assert successor.status()["state"] == "running"
    successor.tell({"type": "stop", "drain_seconds": 10})
    successor.end()
    cluster.check_exactly_once()


def test_configuration_of_the_node_takes_effect_between_batches(cluster: Cluster) -> None:
    """Another partition, a failing sink and its repair, draining and taking back, and a stop."""
    first = cluster.journal("n1")
    collector = cluster.collector()
    collector.configure(cluster.task(first))
    cluster.append(first, 10)
    wait_for(cluster.drained, "the first events")
    assert collector.status() == {
        "epoch": 1,
        "revision": 1,
        "state": "running",
        "error": None,
        "partitions": [first],
        "epoch_seen": 0,
        "health": "",
    }

    second = cluster.journal("n2")
    cluster.append(second, 10)
    collector.configure(cluster.task(first, second))
    wait_for(cluster.drained, "the second partition")
    assert collector.status()["partitions"] == [first, second]

    cluster.servers.pop("n2").stop()
    cluster.append(first, 10)
    cluster.append(second, 10)
    wait_for(lambda: cluster.ack(first) == 20, "the partition that can be reached")
    assert cluster.ack(second) == 10
    cluster.serve("n2")
    wait_for(cluster.drained, "the other one when its node is back")

    obstacle = cluster.folder / "obstacle"
    obstacle.write_text("a file where a directory should be")
    broken = cluster.spec(f"files: {{path: '{obstacle}/x'}}")
    collector.configure(cluster.task(first, second, revision=2, spec=broken))
    cluster.append(first, 10)
    wait_for(lambda: collector.status()["state"] == "failed", "the sink to fail")
    assert collector.status()["revision"] == 2
    assert str(obstacle) in collector.status()["error"]
    assert cluster.ack(first) == 20
    collector.configure(cluster.task(first, second, revision=3))
    wait_for(cluster.drained, "the repaired flow")
    wait_for(lambda: collector.status()["state"] == "running", "the status")

    collector.configure(cluster.task(first, second, state="draining"))
    wait_for(lambda: collector.status()["state"] == "stopped", "the task to be let go")
    assert collector.status()["error"] is None
    cluster.append(first, 10)
    time.sleep(0.5)
    assert not cluster.drained()
    collector.configure(cluster.task(first, second, epoch=2))
    wait_for(cluster.drained, "the task taken back")

    cluster.append(second, 3_000)
    collector.tell({"type": "stop", "drain_seconds": 10})
    assert collector.end() == 0
    cluster.check_exactly_once()


def test_lost_zookeeper_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    zookeeper = RealZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()
    store = connect(f"{zookeeper.address}/away")
    cluster = Cluster(f"{zookeeper.address}/away", store, tmp_path)
    try:
        name = cluster.journal("n1")
        collector = cluster.collector()
        collector.configure(cluster.task(name))
        cluster.append(name, 1_000)
        wait_for(cluster.drained, "the first events")
        for _ in range(2):
            cluster.append(name, 20_000)
            zookeeper.kill()
            cluster.append(name, 1_000)
            time.sleep(1)
            zookeeper.start()
            wait_for(lambda: store.connected, "the test's own session")
            wait_for(lambda: store.connected and cluster.drained(), "collecting to go on")
        assert collector.status()["state"] == "running"
        cluster.check_exactly_once()
    finally:
        cluster.close()
        store.close()
        zookeeper.kill()


def test_collector_ends_with_its_node_and_stops_the_jvm(cluster: Cluster) -> None:
    collector = cluster.collector()
    wait_for(lambda: any(said["type"] == "ready" for said in collector.said), "Spark to run")
    below = family(collector.process.pid)
    assert below
    assert collector.process.stdin
    collector.process.stdin.close()
    assert collector.process.wait(timeout=PATIENCE_SECONDS) == 0
    wait_for(partial(none_alive, below), "the JVM to end")
    log = collector.log.read_text()
    assert "Traceback" not in log
    assert " WARN " not in log


@pytest.mark.long
def test_collector_exits_without_its_jvm_so_that_the_node_restarts_it(cluster: Cluster) -> None:
    collector = cluster.collector()
    wait_for(lambda: any(said["type"] == "ready" for said in collector.said), "Spark to run")
    jvm = next(int(p) for p in family(collector.process.pid) if b"java" in command_of(p))
    os.kill(jvm, signal.SIGKILL)
    assert collector.end() == 1


def test_missing_java_is_reported_in_one_sentence(cluster: Cluster, tmp_path: Path) -> None:
    collector = Collector(cluster.hosts, tmp_path, {"PATH": "/nowhere"})
    assert collector.end() == 2
    said = collector.log.read_text().strip()
    assert "\n" not in said
    assert "no java found" in said


@pytest.mark.long
def test_ack_of_a_later_epoch_supersedes_the_task(cluster: Cluster) -> None:
    name = cluster.journal("n1")
    cluster.append(name, 5)
    cluster.store.write(paths.ack("web", CURSOR_MAIN, name), Ack(epoch=7, offset=0), ABSENT)
    collector = cluster.collector()
    collector.configure(cluster.task(name, epoch=6))
    wait_for(lambda: collector.status().get("state") == "stopped", "the collector to look")
    assert collector.status()["error"] == "superseded"
    assert cluster.ack(name) == 0
