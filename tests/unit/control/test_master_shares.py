"""Masters share the flows by their own progress: one that plans nothing has no share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.master import daemon
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.reader import MISSED_RENEWALS, master_of
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import ANY, Path, Put, Write
from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_node, new_cluster, settle
from tests.testkit.scripted_store import ScriptedStore, fail, nothing, puts
from tests.testkit.store import FakeStore
from tests.unit.control.test_master_troubles import apply, live, told
from zkschema import paths

NOTICED_SECONDS = MISSED_RENEWALS * daemon.RENEW_SECONDS + 1
NAMES = [f"f{number}" for number in range(8)]


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    for name in ("n1", "n2"):
        add_node(store, name)
    return store


def of(master: str) -> set[str]:
    return {name for name in NAMES if master_of(name, ["m1", "m2"]) == master}


def planned(store: FakeStore) -> set[str]:
    return {flow for flow, plan in read_plans(store, NAMES).items() if plan.value.tasks}


def turn(clock: Clock, master: Master, seconds: float) -> None:
    for _ in range(round(seconds)):
        clock.now += 1.0
        master.tick()


def test_share_of_a_master_whose_loop_hangs_is_taken_by_the_others(store: FakeStore) -> None:
    """Its session lives on, since its pings come from another thread."""
    clock = Clock()
    hung, other = (Master(FakeStore(store.tree), name, clock) for name in ("m1", "m2"))
    settle(hung, other)
    for name in NAMES:
        apply(store, name)
    turn(clock, other, 5)
    assert planned(store) == of("m2")
    turn(clock, other, NOTICED_SECONDS)
    assert planned(store) == set(NAMES)
    assert "its loop hangs" in live(store, "m2").troubles["master m1"]
    hung.tick()
    other.tick()
    assert other._reader.snapshot().mine == of("m2"), "it is back, and has its share again"
    assert not other.troubles


@pytest.mark.slow
def test_idle_masters_keep_their_shares(store: FakeStore) -> None:
    """For an hour, each waking only when its timer says so."""
    clock = Clock()
    masters = [Master(FakeStore(store.tree), name, clock) for name in ("m1", "m2")]
    for name in NAMES:
        apply(store, name)
    settle(*masters)
    due = dict.fromkeys(masters, clock.now)
    before = store.read(paths.live_master("m1"))
    while clock.now < 3700.0:
        master = min(due, key=lambda one: due[one])
        clock.now = due[master]
        master.tick()
        due[master] = clock.now + max(0.1, master.wait_seconds)
        assert not master.troubles
        assert master._reader.snapshot().mine == of(master._name)
    after = store.read(paths.live_master("m1"))
    assert before
    assert after
    assert after.version.number - before.version.number <= 3600 / daemon.RENEW_SECONDS + 1


@pytest.mark.slow
def test_master_of_an_older_release_renews_nothing_and_keeps_its_share(store: FakeStore) -> None:
    clock = Clock()
    older, other = (Master(FakeStore(store.tree), name, clock) for name in ("m1", "m2"))
    settle(older, other)
    record = replace(live(store, "m1"), renew_seconds=0.0)
    store.write(paths.live_master("m1"), record, ANY)
    for name in NAMES:
        apply(store, name)
    turn(clock, other, 600)
    assert planned(store) == of("m2")


def test_single_master_does_not_count_as_silent(store: FakeStore) -> None:
    clock = Clock()
    master = Master(FakeStore(store.tree), "m1", clock)
    settle(master)
    clock.now += 600
    apply(store, "f0")
    settle(master)
    assert planned(store) == {"f0"}


class Faulty(Master):
    """Loses the connection in one of so many ticks."""

    each, ticks = 3, 0

    def _turn(self) -> str:
        self.ticks += 1
        if self.ticks % self.each == 0:
            raise UnavailableError("no reply")
        return super()._turn()


def test_master_that_fails_every_third_tick_gives_its_share_up(store: FakeStore) -> None:
    clock = Clock()

    failing = Faulty(FakeStore(store.tree), "m1", clock)
    other = Master(FakeStore(store.tree), "m2", clock)
    given_up = 0
    for _ in range(60):
        clock.now += 1.0
        failing.tick()
        other.tick()
        given_up += other._reader.snapshot().mine == frozenset() and not live(store, "m1").plans
    assert given_up > 40
    assert "no reply" in live(store, "m1").troubles["share"]


def test_single_failures_cost_a_master_no_share(store: FakeStore) -> None:
    clock = Clock()
    failing = Faulty(FakeStore(store.tree), "m1", clock)
    failing.each = 10
    for _ in range(200):
        clock.now += 1.0
        failing.tick()
        assert live(store, "m1").plans


class Overtaken(FakeStore):
    """Another master writes the assignments first, so many times."""

    times = 0

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Any]:
        assignments = [w for writes in transactions for w in writes if _assigns(w)]
        if assignments and self.times:
            self.times -= 1
            other = FakeStore(self.tree)
            for write in assignments:
                assert isinstance(write, Put)
                other.write(write.path, write.value, ANY)
        return super().commit_each(transactions)


def _assigns(write: Write) -> bool:
    return str(write.path).endswith("/assignment")


def test_lost_compare_and_set_is_no_trouble(store: FakeStore) -> None:
    clock = Clock()
    overtaken = Overtaken(store.tree)
    master = Master(overtaken, "m1", clock)
    settle(master)
    overtaken.times = 1
    set_setting(Operator(store, "a", "", 0.0), "grace_seconds", "1")
    apply(store, "f0")
    reported = []
    for _ in range(6):
        clock.now += 1.0
        master.tick()
        reported += [dict(master.troubles), dict(live(store, "m1").troubles)]
    assert overtaken.times == 0, "it was overtaken"
    assert not any(reported)
    assert "f0/ingest.n1" in told(store, "n1")


def test_resolved_trouble_is_withdrawn_within_seconds(store: FakeStore) -> None:
    """Although nothing else happens in the cluster."""
    clock = Clock()
    refused = fail(UserError("refused"), puts(paths.assignment("n1")))
    refusing = ScriptedStore(store.tree, before_commit=refused)
    master = Master(refusing, "m1", clock)
    apply(store, "f0")
    for _ in range(3):
        master.tick()
    assert "node n1" in live(store, "m1").troubles
    refusing.before_commit = nothing
    mended = clock.now
    master.tick()
    for _ in range(100):
        if "node n1" not in live(store, "m1").troubles:
            break
        clock.now += max(0.1, master.wait_seconds)
        master.tick()
    assert clock.now - mended <= 10.0


def test_master_whose_old_session_ends_late_plans_all_the_same(store: FakeStore) -> None:
    """The record of that session is still there when it looks, and gone when it writes."""

    class Leaving(FakeStore):
        def exists(self, path: Path) -> bool:
            return path == paths.live_master("m1") or super().exists(path)

    clock = Clock()
    master = Master(Leaving(store.tree), "m1", clock)
    apply(store, "f0")
    settle(master)
    assert planned(store) == {"f0"}
