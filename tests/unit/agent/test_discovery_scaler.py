"""The number of collect tasks that a discovery task proposes, as it is written and read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flumeng.agent.discovery.scaler import Scaler
from flumeng.config import TaskRange
from flumeng.control.planner.scaling import Decision
from flumeng.control.snapshot import discovered
from flumeng.control.zookeeper import ABSENT, ANY, Put, Write
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import ConflictError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_flow, come_live, new_cluster
from tests.testkit.scripted_store import ScriptedStore, fail_at
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import (
    COLLECT,
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


class Topic:
    """Arrivals and acks of each partition, in events per second."""

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
    store = new_cluster()
    add_flow(store)
    found = Partitions(partitions={name: Partition() for name in NAMES}, epoch=3)
    store.write(paths.partitions("web"), found, ABSENT)
    come_live(store, "n1", uuid="u")
    store.write(paths.node("n1"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
    obey(store, 2)
    return store


def obey(store: FakeStore, tasks: int) -> None:
    """A master plans so many tasks, and their node runs them."""
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
    """Advance: each partition receives and acks so many events per second."""
    found = []
    for _ in range(count):
        clock.now += 15
        topic.go_on(arriving, acked)
        found.append(one.step(topic.accounts()))
    return found


def proposed(store: FakeStore) -> Scaling | None:
    found = store.read(paths.partitions("web"))
    return found.value.scaling if found else None


def test_lag_becomes_a_proposal_and_the_partitions_stay(store: FakeStore) -> None:
    clock, topic = Clock(1000.0), Topic()
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
    """A topic whose events all came within a second."""

    def accounts(self) -> dict[str, Account]:
        found = super().accounts()
        return {name: replace(one, newest_us=10**9 + 10**6) for name, one in found.items()}


def test_burst_of_young_events_that_waits_long_is_scaled_out(store: FakeStore) -> None:
    clock, topic = Clock(1000.0), Burst()
    one = scaler(store, clock)
    steps(one, clock, topic, 1, arriving=100_000, acked=10)
    steps(one, clock, topic, 8, arriving=0, acked=10)
    scaling = proposed(store)
    assert scaling is not None
    assert (scaling.tasks, scaling.decisions[-1].kind) == (8, "out")


def test_events_acked_within_each_look_are_not_late(store: FakeStore) -> None:
    clock, topic = Clock(1000.0), Burst()
    one = scaler(store, clock)
    found = steps(one, clock, topic, 20, arriving=100, acked=100)
    topic.safe += 500
    found += steps(one, clock, topic, 20, arriving=100, acked=100)
    assert {decision.kind for decision in found if decision} == {"watching", "steady"}


def test_nothing_is_decided_while_the_new_tasks_start(store: FakeStore) -> None:
    clock, topic = Clock(1000.0), Topic()
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
def test_task_or_partition_that_is_not_at_work_is_named(store: FakeStore, fault: str) -> None:
    clock, topic = Clock(1000.0), Topic()
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
            "silent": f"the end of partition {NAMES[2]} is unknown (1 such partitions)",
        }[fault],
    )


def test_new_owner_continues_with_the_number_and_a_former_one_writes_nothing(
    store: FakeStore,
) -> None:
    clock, topic = Clock(1000.0), Topic()
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


def test_write_lost_to_another_writer_is_repeated(store: FakeStore) -> None:
    def scales_out(writes: Sequence[Write]) -> bool:
        values = [one.value for one in writes if isinstance(one, Put)]
        wanted = [value.scaling for value in values if isinstance(value, Partitions)]
        return any(scaling and scaling.tasks > 2 for scaling in wanted)

    losing = fail_at(1, ConflictError("another was faster"), scales_out)
    contended = ScriptedStore(store.tree, before_commit=losing)
    clock, topic = Clock(1000.0), Topic()
    one = scaler(contended, clock)
    with pytest.raises(ConflictError):
        steps(one, clock, topic, 20, arriving=300, acked=100)
    assert getattr(proposed(store), "tasks", 0) == 2
    steps(one, clock, topic, 1, arriving=300, acked=100)
    assert getattr(proposed(store), "tasks", 0) > 2


def test_a_quiet_flow_writes_nothing(store: FakeStore) -> None:
    clock, topic = Clock(1000.0), Topic()
    one = scaler(store, clock)
    steps(one, clock, topic, 12, arriving=10, acked=10)
    before = store.read(paths.partitions("web"))
    steps(one, clock, topic, 20, arriving=10, acked=10)
    after = store.read(paths.partitions("web"))
    assert before is not None
    assert after is not None
    assert before.version == after.version
    assert discovered.read(store, ["web"])
