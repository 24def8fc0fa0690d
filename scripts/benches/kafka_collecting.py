"""A real collector that empties the topic of ``bench kafka``, run as a process as a node runs it,
with ZooKeeper beside it.

Of it the steady state counts, the second half of the events: Spark's JVM compiles its code in the
first, as much for a few events as for many. Its CPU seconds are those of the driver, of Spark's
JVM and of all its Python workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benches.collecting import Child, cpu_of
from benches.kafka_side import Reading
from benches.kafka_topic import PARTITIONS, TOPIC
from flumeng.connectors.kafka import admin, partition_names
from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.control.zookeeper import ABSENT, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.store import RealZooKeeper
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN, flow_folders

LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 400.0
FLOW = """
flow: {flow}
sources:
  - kafka: {{brokers: ["{brokers}"], topics: [{topic}]}}
delivery: {delivery}
sinks:
  - {sink}
batch: {{seconds: 1 s}}
"""


def collect(server: RealKafka, folder: Path, delivery: str, sink: str, events: int) -> Reading:
    """All ``events`` of the topic into ``sink``, by a flow that is called as ``folder``."""
    flow = folder.name
    source = KafkaSource(brokers=(server.address,), topics=(TOPIC,))
    asked = admin.shared(Access.of(source))
    topic_id = asked.topic_id(asked.topics([TOPIC])[TOPIC])
    partitions = [partition_names.name_of(TOPIC, number, topic_id) for number in range(PARTITIONS)]
    spec = FLOW.format(flow=flow, brokers=server.address, topic=TOPIC, delivery=delivery, sink=sink)
    with _collector(folder, flow, partitions, spec) as (store, pid):
        return _watch(store, flow, partitions, pid, events)


@contextmanager
def _collector(
    folder: Path, flow: str, partitions: list[str], spec: str
) -> Iterator[tuple[Store, int]]:
    """One with a task of all the partitions: what is in ZooKeeper, and its process."""
    zookeeper = RealZooKeeper(folder / "zookeeper")
    zookeeper.start()
    hosts = f"{zookeeper.address}/bench"
    store = connect(hosts)
    try:
        tree.init(store)
        store.write(paths.flow(flow), records.Flow(revision=1), ABSENT)
        for path in flow_folders(flow):
            store.write(path, None, ABSENT)
        found = records.Partitions(partitions={name: records.Partition() for name in partitions})
        store.write(paths.partitions(flow), found, ABSENT)
        data = ["--data", str(folder), "--node", "n1", "--zk", hosts]
        with Child("collector", data) as collector:
            collector.receive("ready")
            task = {"flow": flow, "task": "collect.0", "epoch": 1, "revision": 1, "spec": spec}
            task |= {"partitions": partitions, "state": "running"}
            collector.send({"type": "configure", "number": 1, "tasks": [task]})
            yield store, collector.pid
            collector.send({"type": "stop", "drain_seconds": 5})
    finally:
        store.close()
        zookeeper.kill()


def _watch(store: Store, flow: str, partitions: Sequence[str], pid: int, events: int) -> Reading:
    first: tuple[int, float, float] | None = None
    acked = 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while acked < events:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{acked} of {events} events after {PATIENCE_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
        acks = [store.read(paths.ack(flow, CURSOR_MAIN, name)) for name in partitions]
        acked = sum(ack.value.offset for ack in acks if ack is not None)
        if acked >= events // 2 and first is None:
            first = acked, time.monotonic(), sum(cpu_of({"collector": pid}).values())
    assert first is not None
    timed, seconds = events - first[0], time.monotonic() - first[1]
    assert timed > 0, f"{events} events are one batch: take more"
    used = sum(cpu_of({"collector": pid}).values()) - first[2]
    return Reading(timed, seconds, used)
