"""Deadlines that a master measures outlast lost connections and failed ticks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from flumeng.control.commands import flows
from flumeng.control.commands.nodes import set_node_desired
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.reader import WATCHED, Reader
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.snapshot.timers import Timers
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.scripted_store import ScriptedStore, concerns, fail, nothing
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = """
flow: f
sources: [{{tail: {{paths: [/v/{path}.log]}}}}]
place: {{collect: {{tasks: 1}}}}
rollout: {{canary: 1, settle_seconds: 10 s, deadline_seconds: 60 s}}
sinks: [{{console: {{}}}}]
"""
R = TypeVar("R", bound=records.Record)
HICCUP_SECONDS = 50
LIMIT_SECONDS = 60.0
LOOK_SECONDS = 2.0
"""A master that has failed tries again after so long."""


def no_hiccup(_store: FakeStore, _master: Master) -> None:
    pass


def lost_connection(store: FakeStore, master: Master) -> None:
    store.cut()
    master.tick()
    store.heal()


def failed_tick(store: ScriptedStore, master: Master) -> None:
    for top in WATCHED:
        master._on_change(str(top))
    store.before_read = fail(UnavailableError("no reply"), concerns(paths.status))
    master.tick()
    store.before_read = nothing


class World:
    """Two nodes and one flow; a master whose ticks are a second apart."""

    def __init__(self, hiccup: Callable[[ScriptedStore, Master], None]) -> None:
        self.store = new_cluster()
        self.clock = Clock()
        self._hiccup = hiccup
        self._faulty = ScriptedStore(self.store.tree)
        self._master = Master(self._faulty, "m", self.clock, self.clock)
        for name in ("n1", "n2"):
            node = records.Node(uuid=name, roles=("ingest", "collect"))
            self.store.write(paths.node(name), node, ABSENT)
            self.live(name)
        self.apply("x")
        add_journal(self.store, "f.n1.0.00000001")
        for _ in range(5):
            self._master.tick()

    def live(self, name: str) -> None:
        come_live(self.store, name, version="x", since=1.0)

    def apply(self, path: str) -> None:
        text = FLOW.format(path=path)
        flows.apply_flow(Operator(self.store, "a", "", self.clock.now), text)

    @property
    def owner(self) -> str | None:
        plan = read_plan(self.store, "f")
        assert plan is not None
        return plan.value.tasks["collect.0"].node

    @property
    def went_back(self) -> str:
        found = self.store.read(paths.flow("f"))
        assert found is not None
        return found.value.went_back

    def seconds_until(self, is_over: Callable[[], bool]) -> float:
        began = self.clock.now
        while not is_over():
            assert self.clock.now < began + 3600, "not in an hour"
            self.clock.now += 1.0
            if (self.clock.now - began) % HICCUP_SECONDS == HICCUP_SECONDS - 1:
                self._hiccup(self._faulty, self._master)
            self._master.tick()
        return self.clock.now - began


@pytest.fixture(params=[no_hiccup, lost_connection, failed_tick])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def test_task_that_its_owner_does_not_release_is_taken_at_the_drain_limit(world: World) -> None:
    first = world.owner
    assert first is not None
    set_node_desired(Operator(world.store, "a", "", 1.0), first, "draining")
    seconds = world.seconds_until(lambda: world.owner not in (first, None))
    assert LIMIT_SECONDS <= seconds <= LIMIT_SECONDS + LOOK_SECONDS


def test_missed_node_loses_its_tasks_after_the_grace_period(world: World) -> None:
    world.store.write(paths.cluster(), records.Cluster(grace_seconds=LIMIT_SECONDS), ANY)
    first = world.owner
    assert first is not None
    world.store.remove(paths.live_node(first), ANY)
    seconds = world.seconds_until(lambda: world.owner not in (first, None))
    assert LIMIT_SECONDS <= seconds <= LIMIT_SECONDS + LOOK_SECONDS


def test_rollout_without_progress_rolls_back_at_its_deadline(world: World) -> None:
    world.apply("y")
    seconds = world.seconds_until(lambda: bool(world.went_back))
    assert 70.0 <= seconds <= 70.0 + LOOK_SECONDS, "settle and deadline"


def test_grace_period_starts_again_for_a_node_that_was_back_unseen() -> None:
    """Its live znode is gone as before, but its status has been written meanwhile."""
    world = World(no_hiccup)
    world.store.write(paths.cluster(), records.Cluster(grace_seconds=LIMIT_SECONDS), ANY)
    faulty = FakeStore(world.store.tree)
    reader = Reader(faulty, "r", world.clock, world.clock)
    for top in WATCHED:
        faulty.watch(top, reader.on_watch)
    world.store.remove(paths.live_node("n1"), ANY)
    reader.snapshot()
    world.clock.now += LIMIT_SECONDS - 10
    faulty.cut()
    world.live("n1")
    status = records.NodeStatus(assignment_version=0)
    world.store.write(paths.status("n1"), status, ABSENT)
    world.store.remove(paths.live_node("n1"), ANY)
    faulty.heal()
    reader.snapshot()
    world.clock.now += 20
    assert not reader.snapshot().nodes["n1"].down
    world.clock.now += LIMIT_SECONDS
    assert reader.snapshot().nodes["n1"].down


def test_look_that_fails_halfway_forgets_nothing() -> None:
    clock = Clock()
    timers = Timers(clock)

    def lasts(*keys: str) -> frozenset[str]:
        timers.begin()
        return timers.lasting("so", keys, 10.0)

    lasts("a")
    timers.end()
    for _ in range(5):
        clock.now += 2
        timers.begin()  # and the look fails before it asks
        timers.miss_changes()
    assert lasts("a", "b") == {"a"}
    timers.end()
    lasts("b")
    timers.end()
    assert lasts("a", "b") == frozenset(), "a complete look without it forgets"


def test_condition_starts_again_when_its_witness_changed_unseen() -> None:
    clock = Clock()
    timers = Timers(clock)

    def lasts(witness: int) -> bool:
        timers.begin()
        found = timers.lasting("so", {"a": witness}, 10.0)
        timers.end()
        return bool(found)

    lasts(1)
    clock.now += 10
    assert lasts(2), "every change was seen: the fact held all the time"
    timers.miss_changes()
    assert lasts(2)
    timers.miss_changes()
    assert not lasts(3)
