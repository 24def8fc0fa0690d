"""A node is killed whole, and the standby of its task takes over: real nodes and Spark."""

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
  collect: {{labels: {{role: out}}, tasks: 1, replicas: 2}}
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
    apply_flow(operator, FLOW.format(lake=lake))

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
