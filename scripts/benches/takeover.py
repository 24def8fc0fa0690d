"""From the end of a lost node's session to the next commit of its task, by another node.

Real ZooKeeper, a real master, and real nodes with real collectors on Spark: one node receives 2,000
events a second, two may collect them in the flow's only task. Again and again all processes of the
task's node are killed (SIGKILL) at once, and started again when the task runs elsewhere. The next
kill waits until the other node stands by (``standby``), has a warm collector whose Python workers
run, or has no Spark. The clock starts when the node's znode in ``/live`` is gone, so a session's
timeout is not in; the grace period is 0. The parts: until a master has planned, until the other
node was told, until the acks were claimed, and until its first batch was acked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from benches.processes import Processes, cpu_seconds, family
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.store import RealZooKeeper
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, PlannedTask

PATIENCE_SECONDS = 90.0
SESSION_SECONDS = 4.0
LOOK_SECONDS = 0.003
REST_SECONDS, REST_SHARE = 1.0, 0.1
RUNS_SECONDS = 2.0
"""So long the task has committed on its node before that is killed."""
FLUMENG = Path(sys.executable).with_name("flumeng")
TASK = "collect.0"
RATE = 2000
COLLECTORS = ("c0", "c1")
FLOW = """
flow: bench
sources: [{{generate: {{events_per_second: {rate}, bytes: 200}}}}]
place:
  ingest: {{labels: {{role: in}}}}
  collect: {{labels: {{role: out}}, tasks: 1, replicas: {replicas}}}
batch: {{seconds: {batch_seconds}}}
delivery: exactly-once
sinks: [{{files: {{path: "{lake}", format: parquet, shared: true}}}}]
"""
PARTS = ("plan", "tell", "claim", "first_batch")


@dataclass
class Cluster:
    """``running``: the heads of the processes, by name. ``warm``: nodes keep a collector."""

    folder: Path
    hosts: str
    store: Store
    warm: bool = False
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [str(FLUMENG), *arguments, "--zk", self.hosts]
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_node(self, name: str, role: str, label: str) -> None:
        data = str(self.folder / name)
        said = ["--data", data, "--name", name, "--role", role, "--label", f"role={label}"]
        said += [] if self.warm else ["--no-warm-collector"]
        self.start(name, "node", "run", *said, "--session-seconds", str(SESSION_SECONDS))

    def kill(self, name: str) -> None:
        """All that belongs to it, at once."""
        head = self.running.pop(name)
        os.kill(head.pid, signal.SIGSTOP)
        for pid in list(family(head.pid)):
            os.kill(pid, signal.SIGKILL)
        head.wait()

    def task(self) -> PlannedTask | None:
        plan = read_plan(self.store, "bench")
        return plan.value.tasks.get(TASK) if plan else None

    def ack(self) -> Ack:
        for journal in self.store.children(paths.cursor("bench", CURSOR_MAIN)):
            found = self.store.read(paths.ack("bench", CURSOR_MAIN, journal))
            if found is not None:
                return found.value
        return Ack(epoch=0, offset=0)

    def stands_by(self, node: str) -> bool:
        status = self.store.read(paths.status(node))
        said = status.value.tasks.get(f"bench/{TASK}") if status else None
        return said is not None and said.state == "standby"

    def collects(self, node: str) -> bool:
        return "collector" in Processes.of(self.running[node].pid).heads

    def is_warm(self, node: str) -> bool:
        """Spark's JVM runs with the process that forks Python workers, and two of these; they have
        imported their modules and rest."""
        jvm = Processes.of(self.running[node].pid).heads.get("jvm")
        if jvm is None or len(spark := list(family(jvm))) < 4:
            return False
        try:
            before = sum(map(cpu_seconds, spark))
            time.sleep(REST_SECONDS)
            used = sum(map(cpu_seconds, spark)) - before
        except FileNotFoundError:
            return False  # one has ended
        return used < REST_SHARE * REST_SECONDS


def run(rounds: int = 9) -> dict[str, object]:
    """Milliseconds at the median: with a standby, with a warm collector, and with neither."""
    with_standby = measure(replicas=2, rounds=rounds)
    warm = measure(replicas=1, rounds=rounds)
    without = measure(replicas=1, rounds=rounds, warm=False)
    return {
        "rounds": rounds,
        "failover_ms_p50_standby": _ms(map(sum, with_standby)),
        "failover_ms_worst_standby": round(1000 * max(map(sum, with_standby))),
        "failover_parts_ms_standby": _parts(with_standby),
        "failover_ms_p50_warm": _ms(map(sum, warm)),
        "failover_ms_worst_warm": round(1000 * max(map(sum, warm))),
        "failover_parts_ms_warm": _parts(warm),
        "failover_ms_p50": _ms(map(sum, without)),
        "failover_ms_worst": round(1000 * max(map(sum, without))),
        "failover_parts_ms": _parts(without),
    }


def measure(*, replicas: int, rounds: int, warm: bool = True) -> list[list[float]]:
    """Of each round, the seconds that each part took."""
    with cluster_of(replicas, warm=warm) as cluster:
        return [_fail(cluster, replicas) for _ in range(rounds)]


def _fail(cluster: Cluster, replicas: int) -> list[float]:
    task = cluster.task()
    assert task is not None
    assert task.node is not None
    (other,) = {*COLLECTORS} - {task.node}
    until(lambda: cluster.store.exists(paths.live_node(other)), other)
    acked = cluster.ack().offset
    until(lambda: cluster.ack().offset > acked, "commits")
    time.sleep(RUNS_SECONDS)
    if replicas > 1:
        until(lambda: cluster.stands_by(other), f"{other} to stand by")
    elif cluster.warm:
        until(lambda: cluster.is_warm(other), f"a warm collector on {other}")
    else:
        until(lambda: not cluster.collects(other), f"the end of Spark on {other}")
    cluster.kill(task.node)
    until(lambda: not cluster.store.exists(paths.live_node(task.node or "")), "the session's end")
    moments = [time.monotonic()]

    def reached(holds: Callable[[], bool], what: str) -> None:
        until(holds, what)
        moments.append(time.monotonic())

    epoch = task.epoch
    reached(lambda: (now := cluster.task()) is not None and now.node == other, "a plan")
    reached(lambda: _is_told(cluster.store, other), "an assignment")
    reached(lambda: cluster.ack().epoch > epoch, "a claim")
    claimed = cluster.ack().offset
    reached(lambda: cluster.ack().offset > claimed, "a commit")
    cluster.start_node(task.node, "collect", "out")
    return [after - before for before, after in pairwise(moments)]


def _is_told(store: Store, node: str) -> bool:
    found = store.read(paths.assignment(node))
    return found is not None and any(task.state == "running" for task in found.value.tasks)


@contextmanager
def cluster_of(
    replicas: int, batch_seconds: float = 0.3, *, warm: bool = True
) -> Iterator[Cluster]:
    """Once the task has committed."""
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as name:
        folder = Path(name)
        server = RealZooKeeper(folder / "zookeeper")
        server.start()
        hosts = f"{server.address}/bench"
        store = connect(hosts)
        cluster = Cluster(folder, hosts, store, warm)
        try:
            tree.init(store)
            cluster.start("master", "master")
            cluster.start_node("i0", "ingest", "in")
            for node in COLLECTORS:
                cluster.start_node(node, "collect", "out")
            nodes = ("i0", *COLLECTORS)
            until(lambda: all(store.exists(paths.live_node(n)) for n in nodes), "nodes")
            text = FLOW.format(
                replicas=replicas, lake=folder / "lake", rate=RATE, batch_seconds=batch_seconds
            )
            apply_flow(Operator(store, "bench", "", time.time()), text)
            until(lambda: cluster.ack().offset > 0, "the first commit")
            yield cluster
        except AssertionError:
            for log in folder.glob("*.log"):
                print(log, log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            for process in list(cluster.running):
                cluster.kill(process)
            store.close()
            server.kill()


def until(holds: Callable[[], bool], what: str) -> None:
    """Returns when it holds; AssertionError when that takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(LOOK_SECONDS)


def _ms(seconds: Iterator[float]) -> int:
    return round(1000 * median(seconds))


def _parts(rounds: list[list[float]]) -> dict[str, int]:
    return {part: _ms(iter(of)) for part, of in zip(PARTS, zip(*rounds, strict=True), strict=True)}
