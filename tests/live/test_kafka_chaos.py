"""The promise for Kafka: whichever process is killed, each message is in files and in Delta exactly
once.

Numbered messages in 24 partitions, while the broker, collectors, discovery, nodes, masters and
ZooKeeper are killed at random moments; partitions are added, and a topic is recreated.
``FLUMENG_KAFKA_EVENTS`` says how many messages, ``FLUMENG_CHAOS_SECONDS`` for how long at least:
then partitions are added amid the kills, and else before them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from flumeng.connectors.kafka import partition_names
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import discovered
from flumeng.control.zookeeper import Store, Versioned
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import UnavailableError
from tests.live.chaos import Cluster, TwoNodes, chaos_seconds, chaos_seed, kill_at_random
from tests.live.own_server import need_own
from tests.testkit.cluster import acks_of
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.waiting import wait_for, wait_while_changing
from zkschema import paths

EVENTS = int(os.environ.get("FLUMENG_KAFKA_EVENTS", "60000"))
PARTITIONS, MORE_PARTITIONS = 24, 30
AFTERWARDS = 6_000
"""The number of messages that are sent when all partitions are there."""
AGAIN = 1_000
"""The number of messages of a topic before it is recreated, and after."""
SECONDS = 20.0
FLOW = "chaos"
FLOW_TEXT = """
flow: chaos
sources:
  - kafka:
      brokers: ["{broker}"]
      topics: [orders, again]
      discovery_seconds: 1
      on_gone: earliest
place: {{collect: {{tasks: 2}}}}
delivery: exactly-once
batch: {{seconds: 0.5, events: 200000}}
sinks:
  - files: {{path: "{folder}/files", shared: true}}
  - delta: {{path: "{folder}/delta", shared: true}}
"""


class Messages(threading.Thread):
    """Produces numbered messages, each once, however often the broker is killed."""

    def __init__(self, kafka: RealKafka, topic: str, numbers: range, seconds: float) -> None:
        super().__init__(daemon=True)
        self._server, self._topic, self._numbers = kafka, topic, numbers
        self._pause = 0.05
        self._chunk = max(1, round(len(numbers) / max(seconds, 0.1) * self._pause))

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._server.address,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "topic.metadata.refresh.interval.ms": 1000,
                "log_level": 0,
            }
        )
        due = time.monotonic()
        for begin in range(0, len(self._numbers), self._chunk):
            for number in self._numbers[begin : begin + self._chunk]:
                self._produce(producer, number)
            due += self._pause
            time.sleep(max(0.0, due - time.monotonic()))
        while producer.flush(1.0):
            pass

    def _produce(self, producer: Producer, number: int) -> None:
        while True:
            try:
                producer.produce(self._topic, b"n=%d " % number, key=b"%d" % number)
            except BufferError:
                producer.poll(0.1)
            else:
                return


class Eyes:
    """The state of the flow seen from outside."""

    def __init__(self, store: Store, kafka: RealKafka, folder: Path) -> None:
        self._store, self._server, self._folder = store, kafka, folder

    def acks(self) -> dict[str, int]:
        return acks_of(self._store, FLOW)

    def acked(self, topic: str, count: int) -> bool:
        """Whether so many messages of the topic are acked, and no commit is in progress."""
        total = sum(end for name, end in self.acks().items() if name.startswith(f"{topic}."))
        return total >= count and not self._store.children(paths.commits(FLOW))

    def wait(self, topic: str, count: int) -> None:
        """Wait as long as acks move; ZooKeeper may be away meanwhile."""
        wait_while_changing(
            lambda: self.acked(topic, count),
            self.acks,
            f"instead of {count} of {topic}",
            pause_seconds=0.2,
            ignoring=UnavailableError,
        )

    def files(self) -> pa.Table:
        return ds.dataset(self._folder / "files", format="parquet").to_table(columns=COLUMNS)

    def delta(self) -> pa.Table:
        return DeltaTable(self._folder / "delta").to_pyarrow_table(columns=COLUMNS)


COLUMNS = ["journal", "seq", "topic", "body"]


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    cluster = TwoNodes(tmp_path)
    cluster.start_all()
    cluster.start("node2")
    cluster.start("master2")
    yield cluster
    cluster.stop()


@pytest.mark.long
def test_each_message_is_in_files_and_in_delta_once(
    kafka: RealKafka, two_nodes: TwoNodes, tmp_path: Path
) -> None:
    need_own(kafka)
    chance = random.Random(chaos_seed())
    kafka.create_topic("orders", partitions=PARTITIONS)
    kafka.create_topic("again")
    store = connect(two_nodes.hosts)
    text = FLOW_TEXT.format(broker=kafka.address, folder=tmp_path)
    apply_flow(Operator(store, "test", "", 0.0), text)
    eyes = Eyes(store, kafka, tmp_path)
    seconds = max(SECONDS, chaos_seconds())
    messages = Messages(kafka, "orders", range(EVENTS), seconds)
    messages.start()
    Messages(kafka, "again", range(AGAIN), 0.0).run()
    eyes.wait("again", AGAIN)

    kill = partial(kill_anything, two_nodes, kafka, chance, chaos_seconds() / 2)
    if chaos_seconds():
        kill()
    kafka.delete_topic("again")
    time.sleep(2)
    kafka.create_topic("again")
    Messages(kafka, "again", range(AGAIN, 2 * AGAIN), 0.0).run()
    kafka.add_partitions("orders", MORE_PARTITIONS)
    kill()
    messages.join(timeout=300 + chaos_seconds())
    assert not messages.is_alive(), "the producer could not hand everything over"
    Messages(kafka, "orders", range(EVENTS, EVENTS + AFTERWARDS), 0.0).run()
    eyes.wait("orders", EVENTS + AFTERWARDS)
    wait_for(lambda: numbers_of(eyes.files(), "again").size == 2 * AGAIN)
    check(eyes)

    run(two_nodes, "flow", "pause", FLOW)
    acks = eyes.acks()
    places = ",".join(
        f"{partition.label}={acks[name]}"
        for name, partition in ((name, partition_names.parse(name)) for name in registered(store))
    )
    run(two_nodes, "flow", "reset", FLOW, "--to", places, "--yes")
    assert eyes.acks() == acks
    run(two_nodes, "flow", "resume", FLOW)
    Messages(kafka, "again", range(2 * AGAIN, 3 * AGAIN), 0.0).run()
    wait_for(lambda: numbers_of(eyes.files(), "again").size >= 3 * AGAIN)
    check(eyes, again=3 * AGAIN)
    assert not list((tmp_path / "files").glob(".*/**/*.parquet")), "staging was left behind"
    store.close()


def kill_anything(
    cluster: TwoNodes, kafka: RealKafka, chance: random.Random, seconds: float
) -> None:
    """Kill each kind of process once, or repeatedly for so many seconds."""

    def restart(name: str) -> None:
        cluster.tops[name].kill()
        cluster.tops[name].wait()
        time.sleep(chance.uniform(0.0, 2.0))
        cluster.start(name)

    def restart_broker() -> None:
        kafka.kill()
        time.sleep(chance.uniform(0.0, 3.0))
        kafka.start()

    others: dict[str, Callable[[], object]] = {
        "broker": restart_broker,
        "node2": partial(restart, "node2"),
        "master2": partial(restart, "master2"),
    }
    kinds = ("collector", "discovery", "node", "master", "zookeeper")
    until = time.monotonic() + seconds
    kill_at_random(cluster, chance, kinds, others, times=1, until=until)


def check(eyes: Eyes, again: int = 2 * AGAIN) -> None:
    """Each message is there once, and its partition's offsets have no gaps."""
    for table in (eyes.files(), eyes.delta()):
        total = EVENTS + AFTERWARDS
        assert np.array_equal(np.sort(numbers_of(table, "orders")), np.arange(total))
        assert np.array_equal(np.sort(numbers_of(table, "again")), np.arange(again))
        offsets = offsets_of(table)
        for partition, found in offsets.items():
            assert np.array_equal(found, np.arange(len(found))), partition
        assert sum(name.startswith("orders.") for name in offsets) == MORE_PARTITIONS


def registered(store: Store) -> list[str]:
    """The partitions of the topics as they are now."""
    (record,) = discovered.read(store, [FLOW])
    assert isinstance(record, Versioned)
    return sorted(name for name, one in record.value.partitions.items() if one.end is None)


def run(cluster: Cluster, *words: str) -> str:
    """Run a command of flumeng's, which has to succeed."""
    command = [str(Path(sys.executable).parent / "flumeng"), *words]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"FLUMENG_ZK": cluster.hosts},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers_of(table: pa.Table, topic: str) -> np.ndarray:
    bodies = table.filter(pc.field("topic") == topic)["body"]
    found = pc.extract_regex(pc.cast(bodies, "string"), r"n=(?P<n>[0-9]+) ")
    return np.asarray(pc.cast(pc.struct_field(found, "n"), "int64"))


def offsets_of(table: pa.Table) -> dict[str, np.ndarray]:
    """The offsets of each partition, in order."""
    grouped = table.group_by("journal").aggregate([("seq", "list")]).to_pydict()
    pairs = zip(grouped["journal"], grouped["seq_list"], strict=True)
    return {name: np.sort(np.array(seqs)) for name, seqs in pairs}
