"""A node is killed whole, and another takes its task over: a standby, or a warm collector without
tasks. Real nodes and Spark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from flumeng.agent.collector import jvm
from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import overview
from flumeng.control.queries.task_status import TaskRow
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import Store, tree
from tests.live.chaos import descendants
from tests.testkit.cluster import acks_of
from tests.testkit.daemons import start_logged
from tests.testkit.waiting import wait_for
from zkschema import paths

MORE_EVENTS = 4000
FLUMENG = Path(sys.executable).with_name("flumeng")
FLOW = """
flow: web
sources: [{{generate: {{events_per_second: 2000, bytes: 64}}}}]
place:
  ingest: {{labels: {{role: in}}}}
  collect: {{labels: {{role: out}}, tasks: 1, replicas: {replicas}}}
batch: {{seconds: 0.3}}
delivery: exactly-once
sinks: [{{files: {{path: "{lake}", format: parquet, shared: true}}}}]
"""


class Cluster:
    """A master, a node ``i0`` that receives, and ``c0`` and ``c1`` that collect."""

    def __init__(self, folder: Path, hosts: str, store: Store) -> None:
        self.folder = folder
        self.store = store
        self._hosts = hosts
        self.heads: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        self.heads[name] = start_logged(
            self.folder / f"{name}.log", str(FLUMENG), *arguments, "--zk", self._hosts
        )

    def start_node(self, name: str, role: str, label: str) -> None:
        data = str(self.folder / name)
        said = ["--data", data, "--name", name, "--role", role, "--label", f"role={label}"]
        said.append("--warm-collector")
        self.start(name, "node", "run", *said, "--session-seconds", "4")

    def kill(self, name: str) -> None:
        """Kill the whole host."""
        head = self.heads.pop(name)
        os.kill(head.pid, signal.SIGSTOP)
        for pid in [*descendants(head.pid), head.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.wait()

    def acked(self) -> int:
        return sum(acks_of(self.store).values())


@pytest.fixture
def cluster(tmp_path: Path, hosts: str, store: Store) -> Iterator[Cluster]:
    tree.init(store)
    cluster = Cluster(tmp_path, hosts, store)
    cluster.start("master", "master")
    cluster.start_node("i0", "ingest", "in")
    for name in ("c0", "c1"):
        cluster.start_node(name, "collect", "out")
    yield cluster
    for name in list(cluster.heads):
        cluster.kill(name)


@pytest.mark.long
def test_a_standby_takes_over_and_each_event_is_in_the_lake_once(cluster: Cluster) -> None:
    lake = cluster.folder / "lake"
    nodes = [paths.live_node(name) for name in ("i0", "c0", "c1")]
    wait_for(lambda: all(map(cluster.store.exists, nodes)), "the nodes")
    operator = Operator(cluster.store, "a", "", 0.0)
    apply_flow(operator, FLOW.format(lake=lake, replicas=2))

    def task() -> TaskRow | None:
        return next((row for row in overview.tasks(cluster.store) if row.kind == "collect"), None)

    def ready() -> bool:
        row = task()
        return row is not None and list(row.standbys.values()) == ["standby"]

    wait_for(ready, "the standby")
    wait_for(lambda: cluster.acked() > 0, "the first ack")
    before = task()
    assert before is not None
    assert before.node is not None
    (standby,) = before.standbys
    cluster.kill(before.node)
    wait_for(lambda: (row := task()) is not None and row.node == standby, "another owner")
    acked = cluster.acked()
    expected = acked + MORE_EVENTS
    wait_for(lambda: cluster.acked() >= expected, "its acks")
    plan = read_plan(cluster.store, "web")
    assert plan is not None
    assert [(e.node, e.how, e.why) for e in plan.value.ended] == [
        (before.node, "failed", f"node {before.node} is down")
    ]
    log = (cluster.folder / f"{standby}.log").read_text()
    assert log.count("collect started") == 1, "Spark was there before it was needed"
    set_flow_state(operator, "web", "stopped")
    wait_for(lambda: task() is None, "the end of all that was received")
    plan = read_plan(cluster.store, "web")
    assert plan is not None
    assert plan.value.ended[-1].how == "succeeded"
    bodies = ds.dataset(lake, format="parquet").to_table(columns=["body"])["body"]
    numbers = pc.extract_regex(bodies.cast("string"), r"^\d+ (?P<n>\d{16}) ")
    found = pc.struct_field(numbers, "n").cast("int64").to_numpy()
    assert len(found) >= expected
    assert np.array_equal(np.sort(found), np.arange(len(found)))


@pytest.mark.long
def test_a_warm_collector_without_tasks_commits_without_another_jvm(cluster: Cluster) -> None:
    """Its Python workers and its JVM run before the task is there, and go on after it."""
    nodes = [paths.live_node(name) for name in ("i0", "c0", "c1")]
    wait_for(lambda: all(map(cluster.store.exists, nodes)), "the nodes")

    def is_warm(name: str) -> bool:
        live = cluster.store.read(paths.live_node(name))
        return live is not None and live.value.collector != ""

    wait_for(lambda: is_warm("c0") and is_warm("c1"), "Spark on both nodes")
    rows = overview.nodes(cluster.store)
    assert [(row.node, dict(row.tasks), row.problem, dict(row.problems)) for row in rows] == [
        (name, {}, "", {}) for name in ("c0", "c1", "i0")
    ]
    assert "python" not in kinds_below(cluster.heads["i0"].pid), "it does not collect"
    wait_for(lambda: kinds_below(cluster.heads["c0"].pid).count("python") >= 2, "Python workers")
    jvms = {name: jvm_of(cluster.heads[name].pid) for name in ("c0", "c1")}
    apply_flow(
        Operator(cluster.store, "a", "", 0.0), FLOW.format(lake=cluster.folder / "lake", replicas=1)
    )

    def owner() -> str | None:
        rows = (row for row in overview.tasks(cluster.store) if row.kind == "collect")
        return next((row.node for row in rows), None)

    wait_for(lambda: cluster.acked() > 0, "the first ack")
    first = owner()
    assert first is not None
    assert jvm_of(cluster.heads[first].pid) == jvms[first]
    (other,) = {"c0", "c1"} - {first}
    cluster.kill(first)
    wait_for(lambda: owner() == other, "another owner")
    acked = cluster.acked()
    wait_for(lambda: cluster.acked() > acked, "its acks")
    assert jvm_of(cluster.heads[other].pid) == jvms[other]
    set_flow_state(Operator(cluster.store, "a", "", 0.0), "web", "stopped")
    wait_for(lambda: owner() is None, "the end of all that was received")
    assert jvm_of(cluster.heads[other].pid) == jvms[other]


def kinds_below(pid: int) -> list[str]:
    """The kind of each process of Spark below ``pid``: the JVM, or Python below it."""
    spark = jvm_of(pid)
    return [] if spark is None else ["jvm", *("python" for _ in descendants(spark))]


def jvm_of(pid: int) -> int | None:
    """Spark's JVM below ``pid``."""
    for below in descendants(pid):
        with contextlib.suppress(OSError):
            if jvm.MAIN_CLASS in Path(f"/proc/{below}/cmdline").read_bytes().split(b"\0"):
                return below
    return None
