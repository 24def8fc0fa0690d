"""The number of collect tasks that a discovery task proposes, as it is written and read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flumeng.agent.discovery.scaler import Scaler
from flumeng.config import TaskRange
from flumeng.control.planner.scaling import Decision
from flumeng.control.snapshot import discovered
from flumeng.control.zookeeper import ABSENT, ANY, Put, Version, Write, tree
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import ConflictError
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.bootstrap import flow_folders
from zkschema.records import (
    COLLECT,
    Flow,
    LiveNode,
    Node,
    NodeStatus,
    Partition,
    Partitions,
    Plan,
    PlannedTask,
    Scaling,
    TaskStatus,
)

NAMES = [f"orders.{number}.AAAAAAAA@kafka" for number in range(8)]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Topic:
    """What comes and what is acked of each partition, in events per second."""

    def __init__(self) -> None:
        self.safe = self.acked = 0.0

    def go_on(self, arriving: float, acked: float) -> None:
        self.safe += arriving * 15
        self.acked = min(self.safe, self.acked + acked * 15)

    def accounts(self) -> dict[str, Account]:
        late = 90_000_000 if self.safe - self.acked > 100 else 1_000_000
        account = Account(
            term=1,
            durability="disk",
            floor=0,
            acked=int(self.acked),
            safe=int(self.safe),
            bytes=0,
            max_bytes=0,
            lost=0,
            waits_at=None,
            closed=False,
            oldest_unacked_us=10**9,
            newest_us=10**9 + late,
        )
        return dict.fromkeys(NAMES, account)


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    tree.init(store)
    store.write(paths.flow("web"), Flow(revision=1), ABSENT)
    for folder in flow_folders("web"):
        store.write(folder, None, ABSENT)
    found = Partitions(partitions={name: Partition() for name in NAMES}, epoch=3)
    store.write(paths.partitions("web"), found, ABSENT)
    live = LiveNode(uuid="u", incarnation="i", pid=1, version="0", since=0.0)
    store.write(paths.live_node("n1"), live, ABSENT)
    store.write(paths.node("n1"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
    obey(store, 2)
    return store


def obey(store: FakeStore, tasks: int) -> None:
    """A master plans so many, and their node runs them."""
    names = [f"collect.{number}" for number in range(tasks)]
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="assigned")
    running = TaskStatus(epoch=1, revision=1, state="running")
    status = NodeStatus(assignment_version=1, tasks={f"web/{name}": running for name in names})
    store.write(paths.plan("web"), Plan(epoch=1, tasks=dict.fromkeys(names, task)), ANY)
    store.write(paths.status("n1"), status, ANY)


def scaler(store: FakeStore, clock: Clock, epoch: int = 3) -> Scaler:
    wanted = TaskRange(min=1, max=8)
    return Scaler(store, "web", epoch, wanted, 1.0, clock=clock, wall=lambda: 5e8 + clock.now)


def steps(
    one: Scaler, clock: Clock, topic: Topic, count: int, *, arriving: float, acked: float
) -> list[Decision | None]:
    """Each partition gets and does so many events per second."""
    found = []
    for _ in range(count):
        clock.now += 15
        topic.go_on(arriving, acked)
        found.append(one.step(topic.accounts()))
    return found


def proposed(store: FakeStore) -> Scaling | None:
    found = store.read(paths.partitions("web"))
    return found.value.scaling if found else None


def test_a_lag_becomes_a_proposal_and_the_partitions_stay(store: FakeStore) -> None:
    clock, topic = Clock(), Topic()
    steps(scaler(store, clock), clock, topic, 8, arriving=300, acked=100)
    scaling = proposed(store)
    assert scaling is not None
    assert scaling.tasks == 8
    assert [one.kind for one in scaling.decisions] == ["watching", "out"]
    assert "a task takes 400" in scaling.decisions[-1].why
    record = store.read(paths.partitions("web"))
    assert record is not None
    assert (list(record.value.partitions), record.value.epoch) == (NAMES, 3)


class Burst(Topic):
    """All of its events came within a second."""

    def accounts(self) -> dict[str, Account]:
        found = super().accounts()
        return {name: replace(one, newest_us=10**9 + 10**6) for name, one in found.items()}


def test_a_burst_is_late_by_how_long_it_waits_not_by_when_its_events_came(
    store: FakeStore,
) -> None:
    clock, topic = Clock(), Burst()
    one = scaler(store, clock)
    steps(one, clock, topic, 1, arriving=100_000, acked=10)
    steps(one, clock, topic, 8, arriving=0, acked=10)
    scaling = proposed(store)
    assert scaling is not None
    assert (scaling.tasks, scaling.decisions[-1].kind) == (8, "out")


def test_what_is_acked_within_each_look_is_not_late(store: FakeStore) -> None:
    clock, topic = Clock(), Burst()
    one = scaler(store, clock)
    found = steps(one, clock, topic, 20, arriving=100, acked=100)
    topic.safe += 500
    found += steps(one, clock, topic, 20, arriving=100, acked=100)
    assert {decision.kind for decision in found if decision} == {"watching", "steady"}


def test_nothing_is_decided_while_the_new_tasks_start(store: FakeStore) -> None:
    clock, topic = Clock(), Topic()
    one = scaler(store, clock)
    steps(one, clock, topic, 8, arriving=200, acked=100)
    tasks = getattr(proposed(store), "tasks", 0)
    (decision,) = steps(one, clock, topic, 1, arriving=200, acked=100)
    assert decision is not None
    assert (decision.kind, decision.why) == ("unsettled", f"2 of {tasks} tasks are planned")
    obey(store, tasks)
    (decision,) = steps(one, clock, topic, 1, arriving=200, acked=100)
    assert decision is not None
    assert decision.kind == "watching"


@pytest.mark.parametrize("fault", ["waiting", "dead", "failed", "silent"])
def test_what_is_not_at_work_is_named(store: FakeStore, fault: str) -> None:
    clock, topic = Clock(), Topic()
    one = scaler(store, clock)
    one.step(topic.accounts())
    clock.now += 15
    accounts = topic.accounts()
    if fault == "waiting":
        plan = store.read(paths.plan("web"))
        assert plan is not None
        lost = replace(plan.value.tasks["collect.1"], node=None, state="waiting")
        tasks = {**plan.value.tasks, "collect.1": lost}
        store.write(paths.plan("web"), replace(plan.value, tasks=tasks), ANY)
    elif fault == "dead":
        store.remove(paths.live_node("n1"), ANY)
    elif fault == "failed":
        failed = TaskStatus(epoch=1, revision=1, state="failed", error="disk")
        status = NodeStatus(assignment_version=1, tasks={"web/collect.0": failed})
        store.write(paths.status("n1"), status, ANY)
    else:
        del accounts[NAMES[2]]
    decision = one.step(accounts)
    assert decision is not None
    assert (decision.kind, decision.why) == (
        "unsettled",
        {
            "waiting": "task collect.1 is waiting",
            "dead": "task collect.0 does not run on node n1",
            "failed": "task collect.0 does not run on node n1",
            "silent": f"it is unknown how far {NAMES[2]} reaches (1 partitions in all)",
        }[fault],
    )


def test_whoever_takes_over_goes_on_with_the_number_and_an_owner_before_writes_nothing(
    store: FakeStore,
) -> None:
    clock, topic = Clock(), Topic()
    old = scaler(store, clock)
    steps(old, clock, topic, 8, arriving=300, acked=100)
    found = store.read(paths.partitions("web"))
    assert found is not None
    store.write(paths.partitions("web"), replace(found.value, epoch=4), ANY)
    assert steps(old, clock, topic, 3, arriving=0, acked=900) == [None, None, None]
    obey(store, 8)
    new = scaler(store, clock, epoch=4)
    decisions = steps(new, clock, topic, 3, arriving=100, acked=900)
    assert [one.tasks for one in decisions if one] == [8, 8]


def test_a_write_that_is_lost_to_another_is_tried_again(store: FakeStore) -> None:
    class Contended(FakeStore):
        lost = 1

        def commit(self, writes: Sequence[Write]) -> list[Version]:
            puts = [one for one in writes if isinstance(one, Put)]
            wanted = [one.value for one in puts if isinstance(one.value, Partitions)]
            if self.lost and any(one.scaling and one.scaling.tasks > 2 for one in wanted):
                self.lost -= 1
                raise ConflictError("another was faster")
            return super().commit(writes)

    contended = Contended(store.tree)
    clock, topic = Clock(), Topic()
    one = scaler(contended, clock)
    with pytest.raises(ConflictError):
        steps(one, clock, topic, 20, arriving=300, acked=100)
    assert getattr(proposed(store), "tasks", 0) == 2
    steps(one, clock, topic, 1, arriving=300, acked=100)
    assert getattr(proposed(store), "tasks", 0) > 2


def test_a_quiet_flow_writes_nothing(store: FakeStore) -> None:
    clock, topic = Clock(), Topic()
    one = scaler(store, clock)
    steps(one, clock, topic, 12, arriving=10, acked=10)
    before = store.read(paths.partitions("web"))
    steps(one, clock, topic, 20, arriving=10, acked=10)
    after = store.read(paths.partitions("web"))
    assert before is not None
    assert after is not None
    assert before.version == after.version
    assert discovered.read(store, ["web"])
