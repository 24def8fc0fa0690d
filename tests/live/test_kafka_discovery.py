"""Discovery of partitions at a real Kafka, by processes that are killed and brokers that hang.

Flows are suspended where masters and nodes run: their discovery goes on, and no Spark is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flumeng.connectors.kafka.partition_names import parse
from flumeng.control.commands.acks import accept
from flumeng.control.commands.flows import apply_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.acks import acks_of, ask_worker, positions
from flumeng.control.queries.offset_lookup import ask_discovery, offsets
from flumeng.control.snapshot import discovered
from flumeng.control.zookeeper import ABSENT, Store, Versioned, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import child_of
from tests.live.own_server import need_own
from tests.testkit.daemons import module_of, start_logged
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Flow, Partition, Partitions, Plan, PlannedTask

pytestmark = pytest.mark.long

TASK = "web/discover.0"
SPEC = """
flow: web
sources:
- kafka: {{brokers: ["{broker}"], {what}, discovery_seconds: 0.5}}
sinks: [noop: {{}}]
"""


@pytest.fixture
def store(hosts: str) -> Iterator[Store]:
    store = connect(hosts)
    tree.init(store)
    yield store
    store.close()


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


class Process:
    """A discovery process, as a node has it."""

    def __init__(self, hosts: str, data: Path) -> None:
        command = [sys.executable, "-m", "flumeng.agent.discovery", "--zk", hosts, "--node", "here"]
        self._process = subprocess.Popen(
            [*command, "--data", str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.address = ""
        self.said: Mapping[str, Any] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message["type"] == "ready":
                self.address = message["address"]
            elif message["type"] == "status":
                self.said = message["tasks"]

    def configure(self, spec: str, *, epoch: int = 1, revision: int = 1) -> None:
        task = {
            "flow": "web",
            "task": "discover.0",
            "epoch": epoch,
            "revision": revision,
            "spec": spec,
            "partitions": [],
            "state": "running",
        }
        self.tell({"type": "configure", "number": revision, "tasks": [task], "chokes": {}})

    def tell(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    @property
    def state(self) -> str:
        return str(self.said.get(TASK, {}).get("state", ""))

    @property
    def error(self) -> str:
        return self.said.get(TASK, {}).get("error") or ""

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def processes(hosts: str, tmp_path: Path) -> Iterator[Callable[[], Process]]:
    started: list[Process] = []

    def start() -> Process:
        started.append(Process(hosts, tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
def process(store: Store, processes: Callable[[], Process]) -> Process:
    store.write(paths.flow("web"), Flow(revision=1), ABSENT)
    for folder in (paths.acks("web"), paths.cursor("web", CURSOR_MAIN)):
        store.write(folder, None, ABSENT)
    return processes()


def record(store: Store) -> Partitions:
    (found,) = discovered.read(store, ["web"])
    return found.value if isinstance(found, Versioned) else Partitions()


def labels(store: Store) -> list[str]:
    """The registered open partitions, named as Kafka's users name them."""
    found = record(store).partitions
    return sorted(parse(name).label for name, one in found.items() if one.end is None)


def of(kafka: RealKafka, what: str) -> str:
    return SPEC.format(broker=kafka.address, what=what)


def of_topics(kafka: RealKafka, *topics: str, more: str = "") -> str:
    return of(kafka, f"topics: [{', '.join(topics)}]{more}")


def admin(kafka: RealKafka) -> Any:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415  an extra

    return AdminClient({"bootstrap.servers": kafka.address})


def grow(kafka: RealKafka, topic: str, partitions: int) -> None:
    from confluent_kafka.cimpl import NewPartitions  # noqa: PLC0415  an extra

    client = admin(kafka)
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)


def produce(kafka: RealKafka, topic: str, count: int, partition: int = 0) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415  an extra

    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(count):
        producer.produce(topic, f"{number}".encode(), partition=partition)
    producer.flush(30)


def make_anew(kafka: RealKafka, topic: str) -> None:
    kafka.delete_topic(topic)
    wait_for(lambda: topic not in admin(kafka).list_topics(timeout=10).topics)
    kafka.create_topic(topic)


# -- new and deleted topics


def test_new_partitions_and_topics_are_registered_from_their_beginning(
    kafka: RealKafka, store: Store, process: Process, topic: str
) -> None:
    kafka.create_topic(f"{topic}-a")
    produce(kafka, f"{topic}-a", 7)
    process.configure(of(kafka, f'pattern: "{topic}-.*", start_from: latest'))
    wait_for(lambda: labels(store) == [f"{topic}-a.{n}" for n in range(3)])
    starts = {parse(name).label: one.start for name, one in record(store).partitions.items()}
    assert starts == {f"{topic}-a.0": 7, f"{topic}-a.1": 0, f"{topic}-a.2": 0}
    wait_for(lambda: (process.state, process.error) == ("running", ""))
    grow(kafka, f"{topic}-a", 4)
    kafka.create_topic(f"{topic}-b")
    produce(kafka, f"{topic}-b", 5)
    wait_for(lambda: len(labels(store)) == 7)
    starts = {parse(name).label: one.start for name, one in record(store).partitions.items()}
    assert (starts[f"{topic}-a.3"], starts[f"{topic}-b.0"]) == (0, 0)


def test_partitions_of_a_deleted_topic_end_and_others_go_on(
    kafka: RealKafka, store: Store, process: Process, topic: str
) -> None:
    for name in (f"{topic}-a", f"{topic}-b"):
        kafka.create_topic(name)
    process.configure(of(kafka, f'pattern: "{topic}-.*"'))
    wait_for(lambda: len(labels(store)) == 6)
    (gone,) = (n for n in record(store).partitions if n.startswith(f"{topic}-a.0."))
    store.write(paths.ack("web", CURSOR_MAIN, gone), Ack(epoch=1, offset=4), ABSENT)
    kafka.delete_topic(f"{topic}-a")
    wait_for(lambda: labels(store) == [f"{topic}-b.{n}" for n in range(3)])
    assert record(store).partitions[gone] == Partition(end=4)
    assert process.state == "running"


def test_recreated_topic_waits_for_the_operators_accept(
    kafka: RealKafka, store: Store, process: Process, topic: str
) -> None:
    kafka.create_topic(topic)
    process.configure(of_topics(kafka, topic))
    wait_for(lambda: len(labels(store)) == 3)
    old = set(record(store).partitions)
    make_anew(kafka, topic)
    produce(kafka, topic, 9)
    wait_for(lambda: "recreated" in process.error)
    assert process.state == "running"
    assert record(store).partitions.keys() == old
    accept(Operator(store, "t", "", 0.0), "web", dict.fromkeys(record(store).held, "latest"))
    wait_for(lambda: not record(store).partitions.keys() <= old)
    wait_for(lambda: not process.error)
    new = {name: one for name, one in record(store).partitions.items() if name not in old}
    assert sorted(one.start for one in new.values()) == [0, 0, 9]
    wait_for(lambda: {one.end for n, one in record(store).partitions.items() if n in old} == {0})


def test_bounded_flow_ends_by_itself(
    kafka: RealKafka, store: Store, process: Process, topic: str
) -> None:
    kafka.create_topic(topic)
    produce(kafka, topic, 9)
    more = f", end_offsets: {{{topic}.0: 6}}, start_offsets: {{{topic}.0: 2}}"
    process.configure(of_topics(kafka, topic, more=more))
    (name,) = wait_for(lambda: list(record(store).partitions))
    assert record(store).partitions[name] == Partition(start=2, end=6)
    store.write(paths.ack("web", CURSOR_MAIN, name), Ack(epoch=1, offset=6), ABSENT)
    wait_for(lambda: store.read(paths.flow("web")).value.state == "stopped")  # type: ignore[union-attr]
    assert len(store.children(paths.audits())) == 1


# -- troubles


def test_missing_topic_is_reported_and_found_later(
    kafka: RealKafka, store: Store, process: Process, topic: str
) -> None:
    process.configure(of_topics(kafka, topic))
    wait_for(lambda: f"Kafka has no topic {topic}" in process.error)
    kafka.create_topic(topic)
    wait_for(lambda: len(labels(store)) == 3 and not process.error)


def test_frozen_broker_is_reported_and_waited_for(
    kafka: RealKafka, store: Store, process: Process, topic: str
) -> None:
    need_own(kafka)
    kafka.create_topic(topic)
    kafka.freeze()
    try:
        process.configure(of_topics(kafka, topic))
        wait_for(lambda: process.state == "failed")
        assert kafka.address in process.error
    finally:
        kafka.thaw()
    wait_for(lambda: len(labels(store)) == 3 and process.state == "running")
    kafka.freeze()
    try:
        wait_for(lambda: process.state == "failed")
        assert len(labels(store)) == 3, "nothing ends because nobody answers"
    finally:
        kafka.thaw()
    wait_for(lambda: (process.state, process.error) == ("running", ""))


def test_broker_outage_removes_no_partition(
    kafka: RealKafka, store: Store, process: Process, topic: str
) -> None:
    need_own(kafka)
    kafka.create_topic(topic)
    process.configure(of_topics(kafka, topic))
    wait_for(lambda: len(labels(store)) == 3)
    kafka.kill()
    wait_for(lambda: process.state == "failed")
    kafka.start()
    wait_for(lambda: process.state == "running")
    assert len(labels(store)) == 3


def test_owner_resumed_after_its_epoch_writes_no_more(
    kafka: RealKafka, store: Store, process: Process, processes: Callable[[], Process], topic: str
) -> None:
    kafka.create_topic(f"{topic}-a")
    process.configure(of_topics(kafka, f"{topic}-a"))
    wait_for(lambda: len(labels(store)) == 3)
    process.send_signal(signal.SIGSTOP)
    second = processes()
    kafka.create_topic(f"{topic}-b")
    second.configure(of_topics(kafka, f"{topic}-b"), epoch=2)
    wait_for(lambda: labels(store) == [f"{topic}-b.{n}" for n in range(3)])
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: process.state == "stopped")
    assert process.said[TASK]["epoch_seen"] == 2
    assert record(store).epoch == 2
    assert labels(store) == [f"{topic}-b.{n}" for n in range(3)]


# -- with masters and nodes


class Nodes:
    """A master and two nodes."""

    def __init__(self, hosts: str, folder: Path) -> None:
        self._hosts, self._folder = hosts, folder
        self._master = self._start("master", hosts)
        self.nodes = {name: self._node(name) for name in ("a", "b")}

    def _node(self, name: str) -> subprocess.Popen[bytes]:
        data = str(self._folder / name)
        given = ["--zk", self._hosts, "--data", data, "--name", name]
        return self._start("node", *given)

    def _start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        return start_logged(
            self._folder / f"{what}.log", sys.executable, "-m", module_of(what), *arguments
        )

    def discovery(self, node: str) -> int | None:
        return child_of(self.nodes[node].pid, "flumeng.agent.discovery")

    def stop(self) -> None:
        for process in (*self.nodes.values(), self._master):
            process.kill()
            process.wait()


@pytest.fixture
def nodes(hosts: str, store: Store, tmp_path: Path) -> Iterator[Nodes]:
    assert store.connected
    nodes = Nodes(hosts, tmp_path)
    yield nodes
    nodes.stop()


def planned(store: Store) -> PlannedTask | None:
    plan = store.read(paths.plan("web"))
    return (plan.value if plan else Plan()).tasks.get("discover.0")


def address_of(store: Store, node: str) -> str:
    live = store.read(paths.live_node(node))
    return live.value.discovery if live else ""


def test_killed_processes_and_lost_nodes_are_replaced(
    kafka: RealKafka, store: Store, nodes: Nodes, topic: str
) -> None:
    kafka.create_topic(f"{topic}-a")
    spec = of(kafka, f'pattern: "{topic}-.*"')
    list(apply_flows(Operator(store, "t", "", 0.0), {"web": spec}))
    found = store.read(paths.flow("web"))
    assert found is not None
    suspended = Flow(revision=found.value.revision, state="suspended")
    store.write(paths.flow("web"), suspended, found.version)
    wait_for(lambda: len(labels(store)) == 3)
    first = planned(store)
    assert first is not None
    owner = first.node or ""
    pid = wait_for(lambda: nodes.discovery(owner))
    os.kill(pid, signal.SIGKILL)
    kafka.create_topic(f"{topic}-b")
    produce(kafka, f"{topic}-b", 4)
    wait_for(lambda: len(labels(store)) == 6)
    assert nodes.discovery(owner) not in (None, pid)
    assert (planned(store) or first).epoch == first.epoch
    nodes.nodes[owner].kill()
    wait_for(lambda: (planned(store) or first).epoch > first.epoch)
    now = planned(store)
    assert now is not None
    assert now.node not in (None, owner)
    kafka.create_topic(f"{topic}-c")
    wait_for(lambda: len(labels(store)) == 9)
    assert record(store).epoch == now.epoch
    wait_for(lambda: address_of(store, now.node or ""))
    rows = acks_of(store, positions(store, ask_worker))
    ends = {parse(row.partition).label: (row.end, row.lag) for row in rows}
    assert ends[f"{topic}-b.0"] == (4, 4)
    found = store.read(paths.flow("web"))
    assert found is not None
    store.write(paths.flow("web"), replace(found.value, state="stopped"), found.version)
    produce(kafka, f"{topic}-b", 2)
    names = [row.partition for row in rows if parse(row.partition).label == f"{topic}-b.0"]
    assert offsets(store, ask_discovery, "web", names, "latest") == {names[0]: 6}
    assert planned(store) == now


# -- many: last, since brokers with many partitions come back slowly


def test_a_thousand_partitions_are_found_and_reported_quickly(
    kafka: RealKafka, store: Store, process: Process, topic: str
) -> None:
    from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415  an extra

    client = admin(kafka)
    client.create_topics([NewTopic(topic, 1000, 1)])[topic].result(60)
    process.configure(of_topics(kafka, topic))
    wait_for(lambda: len(labels(store)) == 1000)
    version = store.read(paths.partitions("web")).version  # type: ignore[union-attr]
    time.sleep(2)
    assert store.read(paths.partitions("web")).version == version, "nothing has changed"  # type: ignore[union-attr]
    wait_for(lambda: len(ask_worker(process.address)) == 1000)
