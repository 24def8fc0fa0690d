"""What a topic of 1,000 partitions costs flumeng's control plane.

``discovery_seconds``: a discovery task's look at the topic when nothing is known of it.
``plan_seconds``: a planner without memory shares them out to 100 tasks on 10 nodes. Then one task
with all of them, in a real ZooKeeper: ``claim_seconds`` takes their acks for the first time,
``ack_ms`` moves all of them at once, in one transaction of ``ack_bytes`` of values.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection
from pathlib import Path

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.publisher import Publisher
from flumeng.config import CollectPlace, Place
from flumeng.connectors.api.finding import Before
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.kafka.finder import KafkaFinder
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import ABSENT, Version, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.store import RealZooKeeper
from zkschema import codec, paths
from zkschema.bootstrap import flow_folders
from zkschema.records import COLLECT, Ack, Flow, Node, Partition, Partitions

FLOW = "bench"
TOPIC = "many"
PARTITIONS = 1_000
NODES = 10
TASKS = 100
ROUNDS = 5
PATIENCE_SECONDS = 60.0


def measure(server: RealKafka, folder: Path) -> dict[str, float]:
    server.create_topic(TOPIC, partitions=PARTITIONS)
    names, discovery_seconds = _discovered(server.address)
    return {
        "discovery_seconds": round(discovery_seconds, 3),
        "plan_seconds": round(_plan_seconds(names), 3),
        **_acked(names, folder),
    }


def _discovered(address: str) -> tuple[list[str], float]:
    """Once the brokers serve all of them: they need a while for so many new ones."""
    source = KafkaSource(brokers=(address,), topics=(TOPIC,))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        finder = KafkaFinder(source)
        began = time.monotonic()
        offers = finder.find(Before()).offers
        seconds = time.monotonic() - began
        finder.close()
        if len(offers) == PARTITIONS:
            return sorted(offers), seconds
    raise TimeoutError(f"{len(offers)} of {PARTITIONS} partitions found")


def _plan_seconds(names: Collection[str]) -> float:
    nodes = [f"n{number}" for number in range(NODES)]
    place = Place(collect=CollectPlace(tasks=TASKS))
    found = {name: Partition() for name in names}
    view = FlowView(
        FLOW, Flow(revision=1), Version(0), place, partitions=found, pins=False, discovers=True
    )
    snapshot = Snapshot(
        flows={FLOW: view},
        nodes={name: NodeView(name, Node(uuid="u", roles=(COLLECT,)), live=True) for name in nodes},
        journals={},
        drained=frozenset(),
        mine=frozenset({FLOW}),
    )
    began = time.perf_counter()
    actions = Planner().plan(snapshot)
    seconds = time.perf_counter() - began
    assert actions, "nothing was planned"
    return seconds


def _acked(names: Collection[str], folder: Path) -> dict[str, float]:
    zookeeper = RealZooKeeper(folder)
    zookeeper.start()
    store = connect(f"{zookeeper.address}/bench")
    try:
        tree.init(store)
        store.write(paths.flow(FLOW), Flow(revision=1), ABSENT)
        for path in flow_folders(FLOW):
            store.write(path, None, ABSENT)
        record = Partitions(partitions={name: Partition() for name in names}, epoch=1)
        store.write(paths.partitions(FLOW), record, ABSENT)
        began = time.monotonic()
        acks = Acks.claim(store, Publisher(store), FLOW, 1, names)
        claimed = time.monotonic() - began
        seconds = []
        for at in range(ROUNDS):
            began = time.monotonic()
            acks.advance([Range(name, at, at + 1) for name in names])
            seconds.append(time.monotonic() - began)
    finally:
        store.close()
        zookeeper.kill()
    return {
        "claim_seconds": round(claimed, 3),
        "ack_ms": round(statistics.median(seconds) * 1000, 1),
        "ack_bytes": len(codec.encode(Ack(epoch=1, offset=ROUNDS))) * PARTITIONS,
    }
