"""What hundreds of nodes cost ZooKeeper: while they join, while nothing happens, while half leave.

Light nodes, many in a process: real sessions, registration, machine and znodes, over children that
only say that they run. Real masters, one real ZooKeeper, and two links that count what nodes and
masters exchange with it. The nodes that leave are killed, so their sessions end by their timeout;
leaving is timed from the first session that has ended.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benches.server import transactions
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.counting import PING, Counts
from tests.testkit.links import Link, Links
from tests.testkit.store import RealZooKeeper
from zkschema import paths
from zkschema.records import COLLECT, MaintenanceLimits

PROCESSES = 10
MASTERS = 2
TASKS = 100
SESSION_SECONDS = 10.0
STEADY_SECONDS = 20.0
LOOK_SECONDS = 0.25
QUIET_SECONDS = 3.0
PATIENCE_SECONDS = 240.0
FLOW = f"""
flow: bench
sources: [{{syslog: {{listen: "127.0.0.1:0"}}}}]
place: {{collect: {{tasks: {TASKS}}}}}
sinks: [noop]
"""


@dataclass
class World:
    """``nodes`` and ``masters`` count what each of them exchanges with the server."""

    server: RealZooKeeper
    store: Store
    nodes: Link
    masters: Link
    light: list[subprocess.Popen[bytes]]
    count: int

    def measure(self, act: Callable[[], float], count: int) -> dict[str, object]:
        """What ``count`` nodes cost while ``act`` runs, which gives the seconds it took."""
        nodes, masters = self.nodes.counts, self.masters.counts
        before = transactions(self.server.port)
        seconds = act()
        made = transactions(self.server.port) - before
        return {
            "seconds": round(seconds, 2),
            "transactions_per_node": round(made / count, 2),
            **_per_node("nodes", self.nodes.counts.since(nodes), count),
            **_per_node("masters", self.masters.counts.since(masters), count),
        }


def run(nodes: int = 500) -> dict[str, object]:
    """Operations, watch events and bytes for each node, in three phases."""
    nodes = max(1, nodes // PROCESSES) * PROCESSES
    with _world(nodes) as world:

        def stay() -> float:
            time.sleep(STEADY_SECONDS)
            return STEADY_SECONDS

        join = world.measure(lambda: _join(world), nodes)
        _until(lambda: _quiet(world.server), "an end of all moves")
        steady = world.measure(stay, nodes)
        leave = world.measure(lambda: _leave(world), nodes // 2)
        return {
            "nodes": nodes,
            "masters": MASTERS,
            "collect_tasks": TASKS,
            "snapshot_bytes": sum(len(p) + len(d) for p, d in world.store.dump().items()),
            "join": join,
            "steady": steady,
            "half_leave": leave,
        }


def _per_node(who: str, counts: Counts, nodes: int) -> dict[str, object]:
    return {
        f"{who}_operations_per_node": round(counts.operations / nodes, 2),
        f"{who}_pings_per_node": round(counts.requests[PING] / nodes, 2),
        f"{who}_events_per_node": round(counts.events / nodes, 2),
        f"{who}_bytes_in_per_node": round(counts.bytes_in / nodes),
        f"{who}_bytes_out_per_node": round(counts.bytes_out / nodes),
    }


@contextmanager
def _world(count: int) -> Iterator[World]:
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as folder:
        server = RealZooKeeper(Path(folder) / "zookeeper")
        server.start()
        store = connect(f"{server.address}/bench")
        links = Links({"nodes": server.port, "masters": server.port})
        nodes, masters = links["nodes"], links["masters"]
        try:
            _prepare(store)
            with Path(folder, "log").open("ab") as log:

                def start(*command: object) -> subprocess.Popen[bytes]:
                    words = [sys.executable, "-m", *map(str, command)]
                    processes.append(subprocess.Popen(words, stdout=log, stderr=log))
                    return processes[-1]

                for _ in range(MASTERS):
                    start("flumeng.control.master", f"{masters.address}/bench")
                _until(lambda: len(store.children(paths.live_masters())) == MASTERS, "masters")
                share = count // PROCESSES
                command = ("tests.testkit.light_nodes", f"{nodes.address}/bench", folder)
                light = [
                    start(*command, number * share, share, SESSION_SECONDS)
                    for number in range(PROCESSES)
                ]
                yield World(server, store, nodes, masters, light, count)
        except AssertionError:
            print(Path(folder, "log").read_text()[-5000:], file=sys.stderr)
            raise
        finally:
            for process in processes:
                process.kill()
                process.wait()
            store.close()
            links.close()
            server.kill()


def _prepare(store: Store) -> None:
    tree.init(store)
    found = store.read(paths.cluster())
    assert found is not None
    limits = MaintenanceLimits(enter=1.0, leave=1.0)
    settings = replace(found.value, maintenance_limits=limits, throttles={"balance": TASKS})
    store.write(paths.cluster(), settings, found.version)
    apply_flow(Operator(store, "bench", "", time.time()), FLOW)


def _join(world: World) -> float:
    """From the start of the processes until everything runs on every node."""
    began = time.monotonic()
    _until(lambda: _converged(world.store, world.count), "all nodes to run their tasks")
    return time.monotonic() - began


def _leave(world: World) -> float:
    for process in world.light[: PROCESSES // 2]:
        process.kill()
        process.wait()
    _until(lambda: len(world.store.children(paths.live_nodes())) < world.count, "a session to end")
    began = time.monotonic()
    left = world.count // 2
    _until(lambda: _converged(world.store, left), "the others to run all tasks")
    return time.monotonic() - began


def _converged(store: Store, nodes: int) -> bool:
    """So many are live, each runs what it is to run, and together they have all collect tasks."""
    live = store.children(paths.live_nodes())
    if len(live) != nodes:
        return False
    assignments = store.read_many([paths.assignment(name) for name in live])
    statuses = store.read_many([paths.status(name) for name in live])
    collecting = set()
    for assignment, status in zip(assignments, statuses, strict=True):
        if assignment is None or status is None:
            return False
        tasks = {f"{task.flow}/{task.task}": task for task in assignment.value.tasks}
        running = {key for key, task in status.value.tasks.items() if task.state == "running"}
        if not running >= {key for key, task in tasks.items() if task.state == "assigned"}:
            return False
        collecting |= {key for key, task in tasks.items() if task.kind == COLLECT}
    return len(collecting) == TASKS


def _quiet(server: RealZooKeeper) -> bool:
    """Nothing was written for a while, so that nothing moves any more."""
    before = transactions(server.port)
    time.sleep(QUIET_SECONDS)
    return transactions(server.port) == before


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(LOOK_SECONDS)
