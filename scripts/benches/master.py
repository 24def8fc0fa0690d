"""How long one master takes to read, plan and write a large cluster in a real ZooKeeper.

The nodes are znodes only: one session owns what says that they live, and they answer nothing. So
what is measured is the master and its store, with the server on the same machine.
"""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master, collect_garbage_rarely
from flumeng.control.snapshot.reader import Reader
from flumeng.control.zookeeper import ABSENT, ANY, Put, Store, tree
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore, connect
from flumeng.events.journal_names import new_id
from tests.testkit.store import RealZooKeeper
from zkschema import paths
from zkschema.records import COLLECT, Journal, LiveNode, MaintenanceLimits, Node

SESSION_SECONDS = 10.0
ROUNDS = 11
SETTLED_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
FLOW = """
flow: bench
sources: [{{syslog: {{listen: "127.0.0.1:0"}}}}]
place: {{collect: {{tasks: {tasks}}}}}
sinks: [noop]
"""


class Clock:
    """The machine's monotonic clock, and what was put on top."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def run(nodes: int = 10_000) -> dict[str, object]:
    """Seconds until so many nodes have their first assignment; of a look at everything; of a
    round; milliseconds from the end of one node until its task is with another."""
    collect_garbage_rarely()
    with _cluster(nodes) as (store, hosts):
        own = ZooKeeperStore(hosts, SESSION_SECONDS)
        assert own.wait_connected(PATIENCE_SECONDS), "no connection"
        try:
            assign = _timed(lambda: _settle(Master(own, "m")))
            told = store.read_many([paths.assignment(name) for name in _names(nodes)])
            assert all(found is not None and found.value.tasks for found in told), "not all told"
            return {
                "nodes": nodes,
                "journals": nodes,
                "tasks": nodes,
                "first_assignments_seconds": round(assign, 2),
                **_reading(own),
                **_one_leaves(store, own, nodes),
            }
        finally:
            own.close()


def _reading(store: Store) -> dict[str, float]:
    """What it takes to read everything at once, and in a round."""
    clock = Clock()
    reader = Reader(store, "reader", clock, time.time)
    everything = _timed(reader.snapshot)
    clock.ahead = reader.next_read_seconds
    looks = [_timed(reader.snapshot)]
    while reader.next_read_seconds < 1:
        clock.ahead += reader.next_read_seconds
        looks.append(_timed(reader.snapshot))
    return {
        "read_everything_seconds": round(everything, 2),
        "round_looks": len(looks),
        "round_look_ms_p50": round(median(looks) * 1000, 1),
        "round_look_ms_max": round(max(looks) * 1000, 1),
    }


def _one_leaves(store: Store, own: Store, nodes: int) -> dict[str, float]:
    """One node after the other goes; the master runs in a thread, woken by its watches."""
    master = Master(own, "m")
    running = threading.Thread(target=master.run, name="master")
    running.start()
    try:
        _until(lambda: store.exists(paths.live_master("m")), "the master")
        time.sleep(SESSION_SECONDS)
        changes: queue.SimpleQueue[str] = queue.SimpleQueue()
        store.watch(paths.nodes(), changes.put)
        times = [_leave(store, name, changes) for name in _names(nodes)[:ROUNDS]]
    finally:
        master.stop()
        running.join()
    return {
        "one_leaves_ms_p50": round(median(times) * 1000, 1),
        "one_leaves_ms_max": round(max(times) * 1000, 1),
    }


def _leave(store: Store, name: str, changes: queue.SimpleQueue[str]) -> float:
    """Seconds until another node is told of the task that ``name`` had."""
    while not changes.empty():
        changes.get()
    own = str(paths.assignment(name))
    started = time.perf_counter()
    store.remove(paths.live_node(name), ANY)
    while (path := changes.get(timeout=PATIENCE_SECONDS)) == own:
        pass
    elapsed = time.perf_counter() - started
    assert paths.assignment.matches(path), f"{path} has changed"
    time.sleep(SETTLED_SECONDS)
    return elapsed


@contextmanager
def _cluster(nodes: int) -> Iterator[tuple[Store, str]]:
    """A flow with as many journals and collect tasks as nodes; nobody has planned yet."""
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as folder:
        server = RealZooKeeper(Path(folder) / "zookeeper")
        server.start()
        hosts = f"{server.address}/bench"
        store = connect(hosts)
        try:
            tree.init(store)
            found = store.read(paths.cluster())
            assert found is not None
            limits = MaintenanceLimits(enter=1.0, leave=1.0)
            settings = replace(
                found.value, maintenance_limits=limits, grace_seconds=0.0, throttles={"balance": 0}
            )
            store.write(paths.cluster(), settings, found.version)
            apply_flow(Operator(store, "bench", "", 0.0), FLOW.format(tasks=nodes))
            store.commit_each([_node(name) for name in _names(nodes)])
            yield store, hosts
        finally:
            store.close()
            server.kill()


def _node(name: str) -> Sequence[Put]:
    live = LiveNode(uuid=name, incarnation="i", pid=1, version="0", since=0.0)
    journal = Journal(flow="bench", node=name, primary=name, term=1, in_sync=(name,))
    return [
        Put(paths.node(name), Node(uuid=name, roles=(COLLECT,)), ABSENT),
        Put(paths.live_node(name), live, ABSENT),
        Put(paths.journal(new_id("bench", name, 0)), journal, ABSENT),
    ]


def _names(nodes: int) -> list[str]:
    return [f"n{number:05d}" for number in range(nodes)]


def _settle(master: Master) -> None:
    while master.tick() != "nothing to do":
        pass


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.001)


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started
