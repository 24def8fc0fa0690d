"""Throttles of moves hold for the whole cluster, however many masters there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.master.daemon import CONFLICTS, Master
from flumeng.control.planner.placement_index import ASSIGNED, DRAINING
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import ANY, Write
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_node, new_cluster
from tests.testkit.scripted_store import ScriptedStore, puts
from tests.testkit.store import FakeStore
from tests.unit.control.obedient_nodes import obey
from tests.unit.control.test_master_troubles import apply
from zkschema import paths
from zkschema.records import COLLECT, NodeStatus, PlannedTask

FLOWS = [f"f{number}" for number in range(16)]
LIMIT = 2


class Masters:
    """``running`` ones act before each transaction of each other; ``check`` runs after each."""

    def __init__(self, store: FakeStore, names: Sequence[str], check: Callable[[], None]) -> None:
        self.clock = Clock()
        self._check = check
        self._racing = False
        self._calls = 0
        self.running: list[Master] = []
        self.sessions: dict[str, ScriptedStore] = {}
        for name in names:
            session = self.sessions[name] = ScriptedStore(store.tree)
            session.before_commit = partial(self._before_commit, name)
            self.running.append(Master(session, name, self.clock))

    def tick(self) -> None:
        self.clock.now += 1.0
        for master in tuple(self.running):
            master.tick()
            self._check()

    def _before_commit(self, me: str, writes: Sequence[Write]) -> None:
        """A plan that ``me`` writes was decided before what all others do now."""
        if puts(paths.plan)(writes):
            self._race(me)

    def _race(self, me: str) -> None:
        """All other masters tick once, undisturbed; every second time."""
        self._calls += not self._racing
        if self._racing or self._calls % 2:
            return
        self._racing = True
        for other in self.running:
            if other._name != me:
                other.tick()
                self._check()
        self._racing = False


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    add_node(store, "n1")
    return store


def collect_tasks(store: FakeStore) -> Iterator[tuple[str, PlannedTask]]:
    for flow, plan in read_plans(store, FLOWS).items():
        for name, task in plan.value.tasks.items():
            if task.kind == COLLECT:
                yield f"{flow}/{name}", task


def draining(store: FakeStore) -> list[str]:
    return [key for key, task in collect_tasks(store) if task.state == DRAINING]


def starting(store: FakeStore) -> list[str]:
    """The tasks that live nodes were assigned and do not run yet."""
    live = store.children(paths.live_nodes())
    found = {node: store.read(paths.status(node)) for node in live}
    statuses = {
        node: one.value if one else NodeStatus(assignment_version=0) for node, one in found.items()
    }
    return [
        key
        for key, task in collect_tasks(store)
        if task.state == ASSIGNED and task.node in live and (key not in statuses[task.node].tasks)
    ]


def settled(store: FakeStore, masters: Masters, nodes: Sequence[str]) -> None:
    for _ in range(10):
        masters.tick()
        for node in nodes:
            obey(store, node)


@pytest.mark.parametrize("names", [("m1", "m2"), ("m1", "m2", "m3"), ("m1", "m2", "dead", "hung")])
def test_balance_moves_under_way_never_exceed_the_throttle(
    store: FakeStore, names: Sequence[str]
) -> None:
    """With a master that dies and one that hangs meanwhile; all moves are made in the end."""
    set_setting(Operator(store, "a", "", 0.0), "balance", str(LIMIT))
    seen: set[int] = set()

    def check() -> None:
        seen.add(len(draining(store)))
        assert max(seen) <= LIMIT, draining(store)

    masters = Masters(store, names, check)
    for name in FLOWS:
        apply(store, name)
    settled(store, masters, ["n1"])
    for name in ("n2", "n3", "n4"):
        add_node(store, name)
    for master in tuple(masters.running):
        if master._name in ("dead", "hung"):
            masters.running.remove(master)
    if "dead" in names:
        masters.sessions["dead"].close()
    for _ in range(400):
        masters.tick()
        for node in ("n1", "n2", "n3", "n4"):
            obey(store, node)
        owners = [task.node for _, task in collect_tasks(store)]
        if {owners.count(f"n{n}") for n in (1, 2, 3, 4)} == {4} and not draining(store):
            break
    else:
        pytest.fail(f"the load is not even: {sorted(map(str, owners))}")
    assert LIMIT in seen
    assert not any(
        master.troubles.keys() & {f"flow {f}" for f in FLOWS} for master in masters.running
    )


@pytest.mark.slow
@pytest.mark.parametrize("names", [("m1", "m2"), ("m1", "m2", "m3")])
def test_lost_tasks_that_start_never_exceed_the_throttle(
    store: FakeStore, names: Sequence[str]
) -> None:
    set_setting(Operator(store, "a", "", 0.0), "recovery", str(LIMIT))
    seen: set[int] = set()
    lost = False

    def check() -> None:
        if lost:
            seen.add(len(starting(store)))
            assert max(seen) <= LIMIT, starting(store)

    gone = ("n1", "n3", "n4")
    for name in gone[1:]:
        add_node(store, name)
    masters = Masters(store, names, check)
    for name in FLOWS:
        apply(store, name)
    settled(store, masters, gone)
    add_node(store, "n2")
    for name in gone:
        store.remove(paths.live_node(name), ANY)
    lost = True
    for _ in range(100):
        masters.tick()
        masters.tick()
        obey(store, "n2")
        if {task.node for _, task in collect_tasks(store)} == {"n2"}:
            break
    else:
        pytest.fail(f"not all lost tasks were given away: {dict(collect_tasks(store))}")
    assert LIMIT in seen


def test_master_that_is_always_slower_reports_no_trouble(store: FakeStore) -> None:
    """Its moves wait for those of the others; a lost compare-and-set is part of normal work."""
    masters = Masters(store, ("m1", "m2"), lambda: None)
    for name in FLOWS:
        apply(store, name)
    settled(store, masters, ["n1"])
    add_node(store, "n2")
    slow, session = masters.running[0], masters.sessions["m1"]

    def overtake(writes: Sequence[Write]) -> None:
        if puts(paths.plan)(writes):
            found = store.read(paths.moves())
            assert found is not None
            store.write(paths.moves(), found.value, found.version)

    session.before_commit = overtake
    masters.running = [slow]
    for _ in range(2 * CONFLICTS):
        masters.tick()
    assert not slow.troubles
    assert not draining(store)
