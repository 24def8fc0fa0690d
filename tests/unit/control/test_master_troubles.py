"""A master's failures: it does the rest, reports them, and leaves the failed part to others."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from flumeng.control.commands import flows
from flumeng.control.commands.operator import KEEP_AUDIT, Operator
from flumeng.control.master import daemon
from flumeng.control.master.daemon import Master
from flumeng.control.master.repeated_messages import QUIET_SECONDS, RepeatedMessages
from flumeng.control.planner.actions import Action
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot.reader import master_of
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import ABSENT, ANY, Write
from flumeng.platform.errors import (
    ConflictError,
    FlumengError,
    ForbiddenError,
    UnavailableError,
    UserError,
)
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_node, new_cluster, settle
from tests.testkit.scripted_store import ScriptedStore, concerns, fail, nothing, puts, removes
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.table import ZPath

FLOW = """
flow: {name}
sources: [{{syslog: {{listen: "127.0.0.1:5514"}}}}]
sinks: [{{console: {{}}}}]
"""


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    for name in ("n1", "n2"):
        add_node(store, name)
    return store


def apply(store: FakeStore, name: str, more: str = "") -> None:
    text = FLOW.format(name=name) + more
    flows.apply_flow(Operator(store, "a", "", 0.0), text)


def told(store: FakeStore, node: str) -> set[str]:
    found = store.read(paths.assignment(node))
    return {f"{task.flow}/{task.task}" for task in found.value.tasks} if found else set()


def live(store: FakeStore, master: str) -> records.LiveMaster:
    found = store.read(paths.live_master(master))
    assert found is not None
    return found.value


@pytest.mark.parametrize("error", [ConflictError, UserError])
@pytest.mark.parametrize("path", [paths.plan("a"), paths.assignment("n1")], ids=str)
def test_permanently_refused_write_stops_nothing_else(
    store: FakeStore, path: ZPath[records.Record], error: type[FlumengError]
) -> None:
    """Because others are always faster, or because it is too large."""
    refusing = ScriptedStore(store.tree, before_commit=fail(error("refused"), puts(path)))
    master = Master(refusing, "m1", Clock())
    for name in "abc":
        apply(store, name)
    for _ in range(10):
        master.tick()
    others = {f"{flow}/ingest.n2" for flow in ("bc" if path == paths.plan("a") else "abc")}
    assert others <= told(store, "n2")
    if path == paths.plan("a"):
        assert {"b/ingest.n1", "c/ingest.n1"} <= told(store, "n1")
    topic = "flow a" if path == paths.plan("a") else "node n1"
    assert topic in master.troubles
    assert topic in live(store, "m1").troubles
    assert not master._wakes.qsize() > 20, "it does not look again and again"


class Poisoned(Planner):
    """Raises when it plans flow a."""

    def plan(self, snapshot: Snapshot) -> list[Action]:
        if "a" in snapshot.mine:
            raise KeyError("nobody expected this")
        return super().plan(snapshot)


class PoisonedMaster(Master):
    def make_planner(self) -> Planner:
        return Poisoned()


def test_flow_that_makes_the_planner_raise_harms_itself_only(store: FakeStore) -> None:
    clock = Clock()
    master = PoisonedMaster(FakeStore(store.tree), "m1", clock)
    for name in "abc":
        apply(store, name)
    settle(master)
    assert {"b/ingest.n1", "c/ingest.n1"} <= told(store, "n1")
    assert not any(key.startswith("a/") for key in told(store, "n1"))
    assert "nobody expected this" in live(store, "m1").troubles["flow a"]
    settle(master, Master(FakeStore(store.tree), "m2", clock))
    assert "a/ingest.n1" in told(store, "n1"), "another master can"


class Broken(Planner):
    def plan(self, _snapshot: Snapshot) -> list[Action]:
        raise RuntimeError("of no use")


class BrokenMaster(Master):
    def make_planner(self) -> Planner:
        return Broken()


def test_a_master_that_cannot_plan_gives_its_share_to_the_others(store: FakeStore) -> None:
    clock = Clock()
    broken = BrokenMaster(FakeStore(store.tree), "m1", clock)
    broken.tick()
    other = Master(FakeStore(store.tree), "m2", clock)
    names = [f"f{number}" for number in range(6)]
    assert "m1" in {master_of(name, ["m1", "m2"]) for name in names}
    for name in names:
        apply(store, name)
    for _ in range(5):
        clock.now += 2
        assert "of no use" in broken.tick()
    assert not live(store, "m1").plans
    assert "of no use" in live(store, "m1").troubles["share"]
    settle(other)
    assert {f"{name}/ingest.n1" for name in names} <= told(store, "n1")
    clock.now += daemon.AWAY_SECONDS
    broken.tick()
    assert live(store, "m1").plans, "it tries again"


def test_invalid_master_name_is_reported_at_once() -> None:
    with pytest.raises(UserError, match="invalid master name 'my master'"):
        daemon.run("127.0.0.1:1", name="my master")


def test_tick_raises_nothing_for_any_failure(store: FakeStore) -> None:
    clock = Clock()
    master = Master(store, "my master", clock)
    for _ in range(8):
        assert master.tick().startswith("cannot plan: ZnodeNameError")
        clock.now += 2


def test_troubles_that_change_all_the_time_are_published_now_and_then(store: FakeStore) -> None:
    numbers = itertools.count(1)

    def refuse(writes: Sequence[Write]) -> None:
        if puts(paths.assignment("n1"))(writes):
            raise ConflictError(f"refused for the {next(numbers)}th time")

    clock = Clock()
    restless = ScriptedStore(store.tree, before_commit=refuse)
    master = Master(restless, "m1", clock)
    apply(store, "a")
    for _ in range(200):
        master.tick()
        clock.now += daemon.UPDATE_SECONDS / 100
    told = list(filter(concerns(paths.live_master), restless.transactions))
    assert 2 <= len(told) <= 4
    assert "node n1" in live(store, "m1").troubles


def test_master_of_another_schema_version_leaves(store: FakeStore) -> None:
    master = Master(FakeStore(store.tree), "m1", Clock())
    master.tick()
    assert store.exists(paths.live_master("m1"))
    found = store.read(paths.schema())
    assert found is not None
    store.write(paths.schema(), records.Schema(version=found.value.version + 7), ANY)
    assert "cannot plan" in master.tick()
    assert not store.exists(paths.live_master("m1"))


def test_a_stray_znode_keeps_its_own_flow_only_from_being_removed(store: FakeStore) -> None:
    master = Master(FakeStore(store.tree), "m1", Clock())
    apply(store, "a")
    settle(master)
    stray = "/flows/a/made by hand"
    store.tree.znodes[stray] = store.tree.znodes["/flows"]
    flows.delete_flow(Operator(store, "a", "", 0.0), "a", discard=True)
    apply(store, "b")
    for _ in range(10):
        master.tick()
    assert "b/ingest.n1" in told(store, "n1")
    assert "flow a" in master.troubles


def test_alternating_sentences_are_logged_once() -> None:
    clock = Clock()
    messages = RepeatedMessages(clock)
    said = []
    for turn in range(100):
        clock.now += 2
        sentence = "waiting" if turn % 2 else "nothing to do"
        said += [sentence] if messages.is_new("tick", sentence) else []
    assert said == ["nothing to do", "waiting"]
    clock.now += QUIET_SECONDS
    assert messages.is_new("tick", "waiting")


def test_masters_of_which_none_can_plan_everything_still_share(store: FakeStore) -> None:
    """More flows than a master may have trouble with are faulty for all masters alike."""
    for number in range(40):
        apply(store, f"f{number}")
    masters = [Master(FakeStore(store.tree), f"m{number}", Clock()) for number in range(3)]
    settle(*masters)
    for number in range(daemon.TROUBLES + 1):
        apply(store, f"f{number}", "place: {collect: {tasks: 2}}")
        text = store.tree.znodes[str(paths.revision(f"f{number}", "2"))]
        text.data = b'{"v":1,"author":"a","reason":"","time":0.0,"text":"flow: x"}'
    for _ in range(6):
        for master in masters:
            master.tick()
    assert not any(live(store, f"m{number}").plans for number in range(3))
    shares = [master._reader.snapshot() for master in masters]
    assert sum(len(share.mine) for share in shares) < 40 + 2 * (daemon.TROUBLES + 1) + 1
    assert sum(share.leads for share in shares) == 1


class Telling(Planner):
    """Records the flows that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at: list[str] = []

    def _place(self, round_: Any) -> None:
        self.looked_at = [name for name, changes in round_.change_sets.items() if changes]
        super()._place_tasks(round_)


@pytest.mark.parametrize("state", ["running", "suspended", "stopped"])
def test_idle_tick_costs_nothing_for_flows_at_rest(store: FakeStore, state: str) -> None:
    telling = Telling()

    class Told(Master):
        def make_planner(self) -> Planner:
            return telling

    counting = ScriptedStore(store.tree)
    master = Told(counting, "m1", Clock())
    for number in range(30):
        apply(store, f"f{number}")
    settle(master)
    assert len(telling.looked_at) in (0, 30)
    if state != "running":
        for number in range(30):
            flows.set_flow_state(Operator(store, "a", "", 0.0), f"f{number}", state)
    settle(master)
    counting.listings.clear()
    assert master.tick() == "nothing to do"
    assert (telling.looked_at, list(filter(None, counting.listings))) == ([], [])


def test_a_stopped_flow_is_collected_until_its_commits_are_finished(store: FakeStore) -> None:
    master = Master(FakeStore(store.tree), "m1", Clock())
    apply(store, "a")
    settle(master)
    commit = records.Commit(epoch=1, staging=(), files=())
    store.write(paths.commit("a", "collect.0@u"), commit, ABSENT)
    flows.set_flow_state(Operator(store, "a", "", 0.0), "a", "stopped")
    settle(master)
    assert "a/collect.0" in told(store, "n1") | told(store, "n2")
    store.remove(paths.commit("a", "collect.0@u"), ANY)
    settle(master)
    assert not told(store, "n1") | told(store, "n2")


def test_cost_of_remembered_sentences_does_not_grow() -> None:
    clock = Clock()
    messages = RepeatedMessages(clock)
    assert all(messages.is_new(f"flow {number}", "why") for number in range(10_000))
    clock.now += QUIET_SECONDS - 1
    assert not any(messages.is_new(f"flow {number}", "why") for number in range(10_000))
    clock.now += 2 * QUIET_SECONDS
    assert messages.is_new("flow 1", "other")
    assert len(messages._logged) == 1, "what was long ago is forgotten"


def test_a_master_without_zookeeper_is_not_ready_at_once(store: FakeStore) -> None:
    """Not only at its next tick, which may be a minute away."""
    master = Master(store, "m1")
    master.tick()
    assert master.measures.health.unready == []
    store.cut()
    assert master.measures.health.unready == ["ZooKeeper is not connected"]


def test_outage_and_its_end_are_logged_once(
    store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    master = Master(store, "m1", clock)

    def ticks(seconds: int) -> list[tuple[str, str]]:
        caplog.clear()
        for _ in range(seconds):
            master._log(master.tick())
            clock.now += 1
        return [(one.levelname, one.message) for one in caplog.records]

    settle(master)
    ticks(5)
    store.cut()
    assert ticks(5) == [("WARNING", "planning: waiting for ZooKeeper")]
    store.heal()
    assert ("INFO", "planning: no trouble for a minute") not in ticks(30)
    assert ticks(60).count(("INFO", "planning: no trouble for a minute")) == 1


@pytest.mark.parametrize("error", [ForbiddenError, UnavailableError])
def test_audit_that_cannot_be_trimmed_is_a_trouble_and_planning_goes_on(
    store: FakeStore, error: type[UnavailableError]
) -> None:
    for number in range(KEEP_AUDIT + 1):
        entry = records.Audit(who="a", command="c", reason="", time=float(number))
        store.write(paths.audit(entry.name(f"{number:05d}")), entry, ABSENT)
    refused = fail(error("no: `flumeng schema verify --fix`"), removes)
    clock = Clock()
    refusing = ScriptedStore(store.tree, before_commit=refused)
    master = Master(refusing, "m1", clock)
    for _ in range(5):
        assert "cannot plan" not in (sentence := master.tick())
        assert "waiting" not in sentence
        clock.now += daemon.UPDATE_SECONDS
    assert live(store, "m1").plans
    assert "schema verify --fix" in live(store, "m1").troubles["audit"]
    refusing.before_commit = nothing
    clock.now += daemon.TRIM_SECONDS
    master.tick()
    master.tick()
    assert "audit" not in master.troubles


def test_refused_access_is_not_reported_as_waiting_for_zookeeper(store: FakeStore) -> None:
    refused = fail(ForbiddenError("the ACL is old"), concerns(paths.live_master))
    master = Master(ScriptedStore(store.tree, before_commit=refused), "m1", Clock())
    assert master.tick() == "cannot plan: the ACL is old"
