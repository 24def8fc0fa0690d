"""How much longer recovery takes while a large flow is deleted, with a real ZooKeeper."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from flumeng.control.commands.flows import apply_flow, delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.zookeeper import ABSENT, ANY, Put, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.store import RealZooKeeper
from zkschema import paths
from zkschema.records import Ack, LiveNode, Node

NODES = ("n1", "n2")
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.01
BEGUN_SECONDS = 0.5
ACKS_AT_ONCE = 500
FLOW = """
flow: {name}
sources: [{{tail: {{paths: ["/var/log/{name}.log"]}}}}]
place: {{collect: {{tasks: 1}}}}
sinks: [noop]
"""


def measure(acks: int = 20_000) -> dict[str, float]:
    """Milliseconds that the task of a lost node waits longer for another node while a flow with so
    many acks is deleted than before."""
    with tempfile.TemporaryDirectory() as folder:
        server = RealZooKeeper(Path(folder) / "zookeeper")
        server.start()
        try:
            return _measure(f"{server.address}/flumeng", acks)
        finally:
            server.kill()


def _measure(hosts: str, acks: int) -> dict[str, float]:
    store = connect(hosts)
    tree.init(store)
    nodes = {name: _node(hosts, name) for name in NODES}
    for flow in ("big", "small"):
        apply_flow(Operator(store, "bench", "", time.time()), FLOW.format(name=flow))
    puts = [
        Put(paths.ack("big", "main", f"big.n1.0.{number:08x}"), Ack(epoch=1, offset=1), ABSENT)
        for number in range(acks)
    ]
    store.commit_each(
        [puts[first : first + ACKS_AT_ONCE] for first in range(0, acks, ACKS_AT_ONCE)]
    )
    master_store = connect(hosts)
    master = Master(master_store, "m")
    thread = threading.Thread(target=master.run, daemon=True)
    thread.start()
    try:
        before = _recovery(store, hosts, nodes)
        delete_flow(Operator(store, "bench", "", time.time()), "big", discard=True)
        time.sleep(BEGUN_SECONDS)
        meanwhile = _recovery(store, hosts, nodes)
        assert store.exists(paths.flow("big")), "the flow was gone before recovery was measured"
    finally:
        master.stop()
        thread.join(PATIENCE_SECONDS)
        for one in (*nodes.values(), master_store, store):
            one.close()
    return {"delete_20000_acks_delay_ms": round(max(0.0, meanwhile - before) * 1000, 1)}


def _recovery(store: Store, hosts: str, nodes: dict[str, Store]) -> float:
    """Seconds from the end of the node that collects the small flow until another one does."""
    _wait_until(store, lambda owner: owner is not None)
    owner = _owner(store)
    assert owner is not None
    began = time.perf_counter()
    nodes[owner].close()
    _wait_until(store, lambda now: now not in (None, owner))
    took = time.perf_counter() - began
    nodes[owner] = _node(hosts, owner)
    return took


def _owner(store: Store) -> str | None:
    for node in NODES:
        found = read_assignment(store, node)
        for task in found.value.tasks if found else ():
            if (task.flow, task.task) == ("small", "collect.0"):
                return node
    return None


def _wait_until(store: Store, is_so: Callable[[str | None], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so(_owner(store)):
        assert time.monotonic() < deadline, "no other node collects the flow"
        time.sleep(LOOK_SECONDS)


def _node(hosts: str, name: str) -> Store:
    """The session of a node that is only znodes."""
    store = connect(hosts)
    if not store.exists(paths.node(name)):
        store.write(paths.node(name), Node(uuid=name, roles=("ingest", "collect")), ANY)
    live = LiveNode(uuid=name, incarnation="i", pid=1, version="0", since=0.0)
    store.write(paths.live_node(name), live, ABSENT)
    return store
