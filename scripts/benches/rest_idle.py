"""The cost of a cluster at rest: an idle tick of a master, and the reads of a quiet node.

Both run the real master and the real node over the in-memory store.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flumeng.agent.node.children import UNLIMITED
from flumeng.agent.node.data_directory import DataDirectory
from flumeng.agent.node.events import Event, Reported
from flumeng.agent.node.settings import Settings
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT, Found, tree
from flumeng.control.zookeeper import Path as Znode
from tests.testkit.light_nodes import ScriptedChild
from tests.testkit.simulation.stepped_node import SteppedNode
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import INGEST, AssignedTask, Assignment, Journal, LiveNode, Node

FLOWS = 50
TICKS = 20
SETTLE_SECONDS = 120
QUIET_SECONDS = 600
FLOW = """
flow: {name}
sources: [{{tail: {{paths: ["/var/log/{name}.log"]}}}}]
durability: replicated
sinks: [noop]
"""


def measure(journals: int = 10_000) -> dict[str, float]:
    """Milliseconds of a tick that finds nothing to do, with so many journals with replicas;
    requests that a quiet node with 50 of them sends to ZooKeeper in a minute, and the znodes in
    them."""
    requests, znodes = _idle_reads()
    return {
        "idle_tick_ms_10000_replicas": round(_idle_tick(journals) * 1000, 2),
        "idle_reads_per_node_minute": round(requests, 1),
        "idle_znodes_per_node_minute": round(znodes, 1),
    }


def _idle_tick(journals: int) -> float:
    """The best of some whole ticks: reading, planning, and all that follows."""
    store = FakeStore()
    tree.init(store)
    names = [f"n{number:04d}" for number in range(journals // FLOWS)]
    for name in names:
        _add_node(store, name)
    _add_flows(store)
    for flow in _flows():
        for place, name in enumerate(names):
            replicas = (name, names[(place + 1) % len(names)], names[(place + 7) % len(names)])
            _add_journal(store, f"{flow}.{name}.0.{place:08x}", flow, replicas)
    master = Master(store, "m")
    while master.tick() != "nothing to do":
        pass
    gc.collect()
    gc.disable()
    try:
        return min(_seconds_of(master) for _ in range(TICKS))
    finally:
        gc.enable()


def _seconds_of(master: Master) -> float:
    began = time.perf_counter()
    assert master.tick() == "nothing to do"
    return time.perf_counter() - began


class _Counting(FakeStore):
    """``requests`` that are sent for reads, as the real store sends them; ``read`` znodes."""

    requests = read_znodes = 0

    def _count(self, znodes: int) -> None:
        self.requests += znodes > 0
        self.read_znodes += znodes

    def read_each(self, wanted: Sequence[Any]) -> list[Found[Any]]:
        self._count(len(wanted))
        return super().read_each(wanted)

    def children_many(self, wanted: Sequence[Znode]) -> list[list[str]]:
        self._count(len(wanted))
        return [super(_Counting, self).children(path) for path in wanted]

    def children(self, path: Znode) -> list[str]:
        return self.children_many([path])[0]

    def exists(self, path: Znode) -> bool:
        self._count(1)
        return super().exists(path)


def _idle_reads() -> tuple[float, float]:
    """A node ingests 50 flows whose journals have replicas on two other nodes each, and nothing
    happens; its clock is moved by hand."""
    store, clock = _Counting(), [1000.0]
    tree.init(store)
    for number in range(8):
        _add_node(store, f"n{number}", live=number > 0)
    _add_flows(store)
    told = {}
    for place, flow in enumerate(_flows()):
        name = f"{flow}.n0.0.light"
        _add_journal(store, name, flow, ("n0", f"n{1 + place % 7}", f"n{1 + (place + 3) % 7}"))
        told[name] = 0
    tasks = tuple(
        AssignedTask(flow=flow, task="ingest.n0", kind=INGEST, epoch=1, revision=1, state="running")
        for flow in _flows()
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings("n0", Path(folder), "", roles=(INGEST,), limits=UNLIMITED)
        home = DataDirectory(settings.data)

        def hear(event: Event) -> None:
            node.hear(event)

        def child(name: str) -> ScriptedChild:
            scripted = ScriptedChild(name, "n0", hear)
            scripted.open_journals({name: _said(name) for name in told})
            return scripted

        node = SteppedNode(settings, home, store, lambda: clock[0], child)
        node.begin()

        def run(seconds: int) -> None:
            for _ in range(2 * seconds):
                clock[0] += 0.5
                node.hear(Reported("ingest.0", {"type": "alive"}))
                node.turn()

        node.turn()
        store.write(paths.assignment("n0"), Assignment(tasks=tasks, journals=told), ABSENT)
        node.turn()
        run(SETTLE_SECONDS)
        store.requests = store.read_znodes = 0
        run(QUIET_SECONDS)
        home.close()
    minutes = QUIET_SECONDS / 60
    return store.requests / minutes, store.read_znodes / minutes


def _said(journal: str) -> dict[str, Any]:
    """As a worker reports a journal that it leads."""
    said = {"flow": journal.partition(".")[0], "term": 1, "closed": False, "end": None}
    return {**said, "replica": "n0/c", "lineage": "l", "leads": True}


def _flows() -> list[str]:
    return [f"flow-{number:02d}" for number in range(FLOWS)]


def _add_flows(store: FakeStore) -> None:
    for name in _flows():
        apply_flow(Operator(store, "bench", "", 0.0), FLOW.format(name=name))


def _add_node(store: FakeStore, name: str, *, live: bool = True) -> None:
    if live:
        node = Node(uuid=name, roles=("ingest", "collect", "replica"))
        store.write(paths.node(name), node, ABSENT)
        said = LiveNode(
            uuid=name, incarnation="i", pid=1, version="0", since=0.0, addresses=(f"{name}:1",)
        )
        store.write(paths.live_node(name), said, ABSENT)


def _add_journal(store: FakeStore, name: str, flow: str, replicas: tuple[str, ...]) -> None:
    journal = Journal(
        flow=flow,
        node=replicas[0],
        primary=replicas[0],
        term=1,
        in_sync=tuple(f"{node}/c" for node in replicas),
        replicas=replicas,
        lineage="l",
    )
    store.write(paths.journal(name), journal, ABSENT)
