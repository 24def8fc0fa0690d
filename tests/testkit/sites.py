"""Sites without servers, to test pushes: a fake tree for each, in which masters obey at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TypeVar

from flumeng.control.zookeeper import ABSENT, ANY, Found, Path, Store, Version, Write, tree
from flumeng.fleet.execution import Execution, Manner, World
from flumeng.fleet.inventory import Inventory, Site
from flumeng.fleet.plan import PushPlan
from flumeng.fleet.site_copy import SiteCopy
from flumeng.fleet.site_turn import Clocks
from flumeng.fleet.waves import Outcome, Wave
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import come_live
from tests.testkit.store import FakeStore, FakeTree
from zkschema import bootstrap, paths, records
from zkschema.records import COLLECT, NodeStatus, Plan, PlannedTask, PushClaim, Record, TaskStatus
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)

NOON = 1_700_000_000.0
NODE = "n1"


class FakeClocks:
    """Sleeping takes no time: afterwards the clock has advanced and ``meanwhile`` was called."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self._seconds = 0.0
        self._lock = threading.Lock()

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: NOON + self._seconds, lambda: self._seconds, self._sleep)

    def _sleep(self, seconds: float) -> None:
        with self._lock:
            self._seconds += seconds
            self._meanwhile()


@dataclass
class Fault:
    """After so many transactions over all sites the pusher loses all connections; the last
    transaction is carried out or not, and its reply is lost."""

    after: int
    carried_out: bool
    count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_over(self) -> bool:
        return self.count > self.after


class FaultyStore(FakeStore):
    def __init__(self, tree: FakeTree, fault: Fault) -> None:
        super().__init__(tree)
        self._fault = fault

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        with self._fault.lock:
            if self._fault.is_over():
                raise UnavailableError("gone")
            self._fault.count += 1
            over = self._fault.is_over()
        if over and not self._fault.carried_out:
            raise UnavailableError("gone")
        versions = super().commit(writes)
        if over:
            raise UnavailableError("the reply is lost")
        return versions

    def look(
        self, wanted: Sequence[ZPath[R]], folders: Sequence[Path]
    ) -> tuple[list[Found[R]], list[list[str]]]:
        if self._fault.is_over():
            raise UnavailableError("gone")
        return super().look(wanted, folders)


class FakeSites:
    """Sites ``s0``, ``s1``, ... with a node each. ``broken``: texts of flows that never run,
    by site."""

    def __init__(self, count: int) -> None:
        self.trees = {f"s{number}": FakeTree() for number in range(count)}
        self.time = FakeClocks(self.obey_all)
        self.broken: dict[str, set[str]] = {name: set() for name in self.trees}
        self.down: set[str] = set()
        self._processes = 0
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._obeying = threading.Lock()
        for name in self.trees:
            store = self.store(name)
            tree.init(store)
            node = records.Node(uuid=f"u-{name}", roles=("ingest", "collect"))
            store.write(paths.node(NODE), node, ABSENT)
            come_live(store, NODE)
            master = records.LiveMaster(host="h", pid=1, version="0", since=0.0)
            store.write(paths.live_master("m1"), master, ABSENT)

    def store(self, name: str) -> FakeStore:
        return FakeStore(self.trees[name])

    def inventory(self, waves: Sequence[Wave] = ()) -> Inventory:
        sites = {name: Site(name, f"{name}:1/c", turn_seconds=5.0) for name in self.trees}
        found = tuple(waves) or (Wave("all", tuple(sites)),)
        return Inventory("fake", FilePath("fake"), sites, found, "digest")

    def connect(self, fault: Fault | None = None) -> Callable[[Site], Store]:
        def connected(site: Site) -> Store:
            if site.name in self.down or (fault is not None and fault.is_over()):
                raise UnavailableError(f"{site.name} does not answer")
            self.obey(site.name)
            store = self.trees[site.name]
            return FakeStore(store) if fault is None else FaultyStore(store, fault)

        return connected

    def obey_all(self) -> None:
        for name in self.trees:
            self.obey(name)

    def obey(self, name: str) -> None:
        """Masters and the node apply the wanted records at once."""
        with self._obeying:
            self._obey(name)

    def _obey(self, name: str) -> None:
        store = self.store(name)
        tasks: dict[str, TaskStatus] = {}
        for flow in store.children(paths.flows()):
            found = store.read(paths.flow(flow))
            assert found is not None
            if found.value.state == "deleted":
                self._remove(store, flow)
                continue
            revision = found.value.revision
            task = PlannedTask(kind=COLLECT, node=NODE, epoch=1, state="assigned")
            plan = Plan(epoch=1, tasks={"collect-0": task}, revision=revision)
            store.write(paths.plan(flow), plan, ANY)
            text = store.read(paths.revision(flow, str(revision)))
            is_broken = text is not None and text.value.effective in self.broken[name]
            state = "failed" if is_broken else "running"
            said = TaskStatus(epoch=1, revision=revision, state=state, error=None)
            tasks[f"{flow}/collect-0"] = said
        status = NodeStatus(assignment_version=0, tasks=tasks)
        store.write(paths.status(NODE), status, ANY)

    def _remove(self, store: FakeStore, flow: str) -> None:
        tops = tuple(str(top) for top in bootstrap.flow_tops(flow))
        for path in list(store.tree.znodes):
            if path in tops or path.startswith(tuple(f"{top}/" for top in tops)):
                del store.tree.znodes[path]

    def push(
        self,
        plan: PushPlan,
        inventory: Inventory,
        manner: Manner,
        *,
        fault: Fault | None = None,
        health: Callable[[SiteCopy], Mapping[str, str]] = lambda _copy: {},
    ) -> Outcome:
        """Push by a process of its own."""
        with self._lock:
            self._processes += 1
            own = f"process-{self._processes}"
            self._running.add(own)
        claim = PushClaim(who=own, push=manner.source.push, boot=own, pid=1, since=NOON)
        world = World(self.connect(fault), health, self.time.clocks, self.has_ended)
        execution = Execution(
            inventory, plan, inventory.waves, replace(manner, claim=claim), world, lambda _e: None
        )
        try:
            return execution.run()
        finally:
            self._running.remove(own)

    def has_ended(self, boot: str, _pid: int) -> bool:
        return boot.startswith("process-") and boot not in self._running
