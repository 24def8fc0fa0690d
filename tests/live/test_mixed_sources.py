"""Three kinds of sources in one flow: a followed log, a topic of Kafka, and objects.

The log is read on the host that it is on, partitions of the topic are assigned once, and objects
are shared out. Collectors, discovery and both nodes are killed meanwhile; each event is in files
once, and nothing is read where it must not be.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.nodes import label_node
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import overview
from flumeng.control.snapshot import journal_registry, partitions
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import FlumengError
from tests.live.chaos import TwoNodes, chaos_seconds, chaos_seed, kill_at_random
from tests.live.test_kafka_chaos import Messages
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.waiting import wait_for, wait_while_changing
from zkschema import paths
from zkschema.records import COLLECT, DISCOVER, INGEST

LINES, MESSAGES, OBJECTS, OBJECT_LINES = 3_000, 4_500, 100, 20
"""Each kind has a different number of events, so that a difference shows the kind."""
PARTITIONS, LANES = 6, 4
SECONDS = 10.0
FLOW = "kinds"
FLOW_TEXT = """
flow: kinds
sources:
  - tail: {{paths: ["{folder}/logs/app.log"]}}
  - kafka: {{brokers: ["{broker}"], topics: [orders], discovery_seconds: 1}}
  - objects:
      paths: ["{folder}/in/*"]
      shared: true
      lanes: {lanes}
      settle_seconds: 0.5
      discovery_seconds: 0.5
place:
  ingest: {{labels: {{logs: here}}}}
  collect: {{tasks: 2}}
delivery: exactly-once
batch: {{seconds: 0.5}}
sinks:
  - files: {{path: "{folder}/lake", shared: true}}
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    """Two nodes; only the first has the log."""
    cluster = TwoNodes(tmp_path)
    cluster.start_all()
    cluster.start("node2")
    store = connect(cluster.hosts)
    wait_for(lambda: store.exists(paths.node("n1")), "n1 does not register")
    label_node(Operator(store, "test", "", 0.0), "n1", {"logs": "here"}, ())
    store.close()
    yield cluster
    cluster.stop()


@pytest.mark.long
def test_each_event_of_each_kind_is_in_files_once(
    kafka: RealKafka, nodes: TwoNodes, tmp_path: Path
) -> None:
    for folder in ("logs", "in"):
        (tmp_path / folder).mkdir()
    kafka.create_topic("orders", partitions=PARTITIONS)
    store = connect(nodes.hosts)
    text = FLOW_TEXT.format(folder=tmp_path, broker=kafka.address, lanes=LANES)
    apply_flow(Operator(store, "test", "", 0.0), text)
    writers = [
        Messages(kafka, "orders", range(MESSAGES), SECONDS),
        threading.Thread(target=write_log, args=[tmp_path / "logs" / "app.log"], daemon=True),
        threading.Thread(target=write_objects, args=[tmp_path / "in"], daemon=True),
    ]
    for writer in writers:
        writer.start()
    kill_anything(nodes)
    for writer in writers:
        writer.join(timeout=120)

    wanted = pa.array(sorted(expected()))
    lake = tmp_path / "lake"
    wait_while_changing(  # on a busy machine Spark may take minutes to start
        lambda: len(bodies(lake)) >= len(wanted),
        lambda: f"{kinds_of(bodies(lake))}; {tasks(store)}",
        ignoring=FlumengError,
    )
    found = bodies(lake)
    assert found.take(pc.sort_indices(found)).equals(wanted)
    check_places(store)
    store.close()


def check_places(store: Store) -> None:
    """Journals on the labelled host alone; each partition and lane with one task."""
    journals = journal_registry.journals(store)
    assert {one.node for one in journals.values()} == {"n1"}
    plan = read_plans(store, [FLOW])[FLOW].value
    kinds: dict[str, set[str | None]] = {INGEST: set(), DISCOVER: set(), COLLECT: set()}
    for task in plan.tasks.values():
        kinds[task.kind].add(task.node)
    assert kinds[INGEST] == {"n1"}
    assert len(kinds[DISCOVER]) == 1
    assert kinds[COLLECT] == {"n1", "n2"}
    dealt = [name for task in plan.tasks.values() for name in task.partitions]
    inputs = sorted(map(partitions.input_of, set(dealt)))
    assert len(dealt) == len(set(dealt))
    assert inputs.count("kafka") == PARTITIONS
    assert inputs.count("objects") == LANES
    owners = {
        task.node
        for task in plan.tasks.values()
        if any(partitions.input_of(name) == "objects" for name in task.partitions)
    }
    assert owners == {"n1", "n2"}, "lanes are shared out"


def kill_anything(cluster: TwoNodes) -> None:
    chance = random.Random(chaos_seed())

    def restart() -> None:
        cluster.tops["node2"].kill()
        cluster.tops["node2"].wait()
        time.sleep(chance.uniform(0.0, 2.0))
        cluster.start("node2")

    until = time.monotonic() + chaos_seconds()
    kinds = ("collector", "discovery", "node", "ingest")
    kill_at_random(cluster, chance, kinds, {"node2": restart}, times=1, until=until)


def write_log(path: Path) -> None:
    with path.open("a", buffering=1) as log:
        for number in range(LINES):
            log.write(f"line {number}\n")
            if number % 200 == 0:
                time.sleep(SECONDS * 200 / LINES)


def write_objects(folder: Path) -> None:
    for number in range(OBJECTS):
        hidden = folder / f".o{number}"
        hidden.write_text("".join(f"object {number} {n}\n" for n in range(OBJECT_LINES)))
        hidden.rename(folder / f"o{number}")
        time.sleep(SECONDS / OBJECTS)


def expected() -> Iterator[str]:
    yield from (f"line {number}" for number in range(LINES))
    yield from (f"n={number} " for number in range(MESSAGES))
    yield from (f"object {o} {n}" for o in range(OBJECTS) for n in range(OBJECT_LINES))


def bodies(lake: Path) -> pa.Array:
    if not lake.exists():
        return pa.array([], pa.string())
    written = ds.dataset(lake, format="parquet")
    if not written.files:
        return pa.array([], pa.string())
    table = written.to_table(columns=["body"])
    return pc.cast(table["body"], pa.string()).combine_chunks()


def kinds_of(found: pa.Array) -> str:
    """How many events there are of each kind."""
    counts = {kind: pc.sum(pc.starts_with(found, kind)).as_py() for kind in ("line", "n=", "obj")}
    return f"{counts} of {LINES}, {MESSAGES} and {OBJECTS * OBJECT_LINES}"


def tasks(store: Store) -> list[str]:
    """The state of each task."""
    return [f"{row.task} on {row.node}: {row.state} {row.why}" for row in overview.tasks(store)]
