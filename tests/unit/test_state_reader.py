"""What a master reads is of one moment, and what it remembers does not outlive what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from flumeng.config import TaskRange
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import journal_registry
from flumeng.control.snapshot.reader import WATCHED, Reader, Round
from flumeng.control.snapshot.task_map import Tasks, plan_writes, read_plan
from flumeng.control.zookeeper import ABSENT, ANY, Found, Unreadable, tree
from flumeng.events import journal_names as names
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN, flow_folders
from zkschema.records import (
    COLLECT,
    Ack,
    Cluster,
    LiveNode,
    Node,
    NodeStatus,
    Partition,
    Partitions,
    Plan,
    PlannedTask,
    Record,
    Scaling,
    TaskStatus,
)
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)
LIVE = LiveNode(uuid="u", incarnation="i", pid=1, version="0", since=0.0)
FLOW = """
flow: web
sources: [{{syslog: {{listen: "127.0.0.1:5514"}}}}]
place: {{collect: {{tasks: {tasks}}}}}
sinks: [{{noop: {{}}}}]
"""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    tree.init(store)
    return store


def apply(store: FakeStore, tasks: int, more: str = "") -> None:
    apply_flow(Operator(store, "a", "", 0.0), FLOW.format(tasks=tasks) + more)


def remove(store: FakeStore) -> None:
    store.remove(paths.revision("web", "1"), ANY)
    for folder in reversed(flow_folders("web")):
        store.remove(folder, ANY)
    store.remove(paths.flow("web"), ANY)


def test_what_was_discovered_is_drained_by_the_ack_of_its_own_flow(store: FakeStore) -> None:
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    apply(store, tasks=1)
    partition = "p0@broker"
    known = {partition: Partition(end=3), "p1@broker": Partition(start=9)}
    store.write(paths.partitions("web"), Partitions(partitions=known), ABSENT)
    seen = reader.snapshot()
    assert seen.open_of("web") == [partition, "p1@broker"]
    path = paths.ack("web", CURSOR_MAIN, partition)
    for offset in (2, 3):
        store.write(path, Ack(epoch=1, offset=offset), ANY)
        reader.on_watch(str(paths.cluster()))
        seen = reader.snapshot()
        assert seen.is_open("web", partition) is (offset < 3)
    assert seen.drained == frozenset({f"web/{partition}"})
    assert seen.open_of("web") == ["p1@broker"]
    del known[partition]
    store.write(paths.partitions("web"), Partitions(partitions=known), ANY)
    reader.on_watch(str(paths.partitions("web")))
    assert reader.snapshot().drained == frozenset()


def test_a_master_sees_the_number_of_tasks_that_was_proposed(store: FakeStore) -> None:
    apply(store, tasks=1)
    reader = Reader(store, "m", Clock(), Clock())
    assert reader.snapshot().flows["web"].proposed_tasks == 0
    store.write(paths.partitions("web"), Partitions(scaling=Scaling(tasks=3)), ABSENT)
    reader.on_watch(str(paths.partitions("web")))
    assert reader.snapshot().flows["web"].proposed_tasks == 3


def test_one_that_was_never_acked_is_drained_when_there_is_nothing_in_it(store: FakeStore) -> None:
    """A topic that is deleted before anybody has read it."""
    apply(store, tasks=1)
    known = {"p0@broker": Partition(start=9, end=9), "p1@broker": Partition(start=8, end=9)}
    store.write(paths.partitions("web"), Partitions(partitions=known), ABSENT)
    seen = Reader(store, "m", Clock(), Clock()).snapshot()
    assert seen.open_of("web") == ["p1@broker"]


def test_a_flow_that_is_made_again_has_another_revision_1(store: FakeStore) -> None:
    clock = Clock()
    reader = Reader(store, "m", clock, clock)

    def tasks() -> int | None:
        reader.on_watch(str(paths.flows()))
        place = reader.snapshot().flows["web"].place
        assert place is not None
        assert not isinstance(place.collect.tasks, TaskRange)
        return place.collect.tasks

    apply(store, tasks=1)
    assert tasks() == 1
    remove(store)
    apply(store, tasks=3)
    assert tasks() == 3


def test_who_joins_while_a_master_reads_is_not_gone(store: FakeStore) -> None:
    """It is given a task by another master between the look at who lives and that at the plan."""
    apply(store, tasks=1)
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="assigned")

    class Interrupted(FakeStore):
        joined = False

        def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
            if not self.joined:
                self.joined = True
                store.write(paths.node("n1"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
                store.write(paths.live_node("n1"), LIVE, ABSENT)
                store.write(paths.plan("web"), Plan(epoch=1, tasks={"collect.0": task}), ANY)
            return super().read_each(wanted)

    interrupted = Interrupted(store.tree)
    reader = Reader(interrupted, "m", Clock(), Clock())
    for top in WATCHED:
        interrupted.watch(top, reader.on_watch)
    snapshot = reader.snapshot()
    assert snapshot.flows["web"].tasks["collect.0"].node == "n1"
    assert snapshot.nodes["n1"].live


def test_no_part_of_a_plan_is_older_than_the_plan_when_it_never_holds_still(
    store: FakeStore,
) -> None:
    """Whoever plans on the plan's version would undo what was written with it."""
    apply(store, tasks=1)
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="assigned")
    tasks = Tasks([{f"collect.{number}": task for number in range(8)}]).spread()
    store.commit(plan_writes("web", Plan(epoch=1, tasks=tasks), Tasks(), ABSENT))

    class Restless(FakeStore):
        """Somebody restarts a task whenever the plan is read."""

        restarts = 0

        def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
            if paths.plan("web") in wanted:
                self.restarts += 1
                found = read_plan(store, "web")
                assert found is not None
                before = Tasks.of(found.value.tasks)
                again = replace(task, epoch=1 + self.restarts)
                after = before.changed({f"collect.{self.restarts % 8}": again})
                plan = replace(found.value, tasks=after, epoch=again.epoch)
                store.commit(plan_writes("web", plan, before, found.version))
            return super().read_each(wanted)

    restless = Restless(store.tree)
    reader = Reader(restless, "m", Clock(), Clock())
    for top in WATCHED:
        restless.watch(top, reader.on_watch)
    flow = reader.snapshot().flows["web"]
    found = read_plan(store, "web")
    assert found is not None
    assert restless.restarts > 2
    assert flow.plan_version != found.version or flow.tasks == Tasks.of(found.value.tasks)


def test_each_time_there_is_all_the_time_to_let_a_task_go(store: FakeStore) -> None:
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    apply(store, tasks=1)
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="draining", mark=2)

    def overdue(task: PlannedTask) -> bool:
        store.write(paths.plan("web"), Plan(epoch=task.epoch, tasks={"collect.0": task}), ANY)
        reader.on_watch(str(paths.plan("web")))
        return "web/collect.0" in reader.snapshot().overdue

    assert not overdue(task)
    clock.now += Cluster().drain_limit_seconds
    assert overdue(task)
    assert not overdue(replace(task, mark=3)), "it was let alone, and marked anew"


def test_a_setting_that_changes_prolongs_no_time(store: FakeStore) -> None:
    """Whoever changes a choke now and then does not keep a node that is gone from being missed."""
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    for top in WATCHED:
        store.watch(top, reader.on_watch)
    store.write(paths.cluster(), Cluster(grace_seconds=10.0), ANY)
    store.write(paths.node("n1"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
    assert not reader.snapshot().nodes["n1"].down
    clock.now += 6.0
    store.write(paths.cluster(), Cluster(grace_seconds=10.0, chokes={"web": 1e6}), ANY)
    assert reader.snapshot().cluster.chokes == {"web": 1e6}
    clock.now += 6.0
    assert reader.snapshot().nodes["n1"].down


def test_a_flow_that_is_made_again_rolls_out_anew(store: FakeStore) -> None:
    """Its tasks are called as those of the flow before, and its epochs begin again as well."""
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    for top in WATCHED:
        store.watch(top, reader.on_watch)
    rollout = f"{FLOW.format(tasks=1)}rollout: {{settle_seconds: 30}}\n"
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="assigned", revision=2)
    running = TaskStatus(epoch=1, revision=2, state="running")
    status = NodeStatus(assignment_version=1, tasks={"web/collect.0": running})
    store.write(paths.node("n1"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
    store.write(paths.status("n1"), status, ABSENT)

    def begin() -> None:
        for text in (FLOW.format(tasks=1), rollout):
            apply_flow(Operator(store, "a", "", 0.0), text)
        plan = Plan(epoch=1, tasks={"collect.0": task}, revision=1)
        store.write(paths.plan("web"), plan, ABSENT)

    begin()
    assert not reader.snapshot().settled
    clock.now += 30.0
    assert reader.snapshot().settled
    store.remove(paths.revision("web", "2"), ANY)
    store.remove(paths.plan("web"), ANY)
    remove(store)
    reader.snapshot()
    begin()
    assert not reader.snapshot().settled


def test_a_round_reads_all_once_more_and_a_part_with_each_look(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what nobody was told of is seen in the end, and no look takes long."""
    monkeypatch.setattr("flumeng.control.snapshot.reader.LOOK_ZNODES", 10)
    looks: list[int] = []

    class Counting(FakeStore):
        def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
            looks.append(len(wanted))
            return super().read_each(wanted)

    for number in range(20):
        store.write(paths.node(f"n{number}"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
    clock = Clock()
    reader = Reader(Counting(store.tree), "m", clock, clock)
    before = reader.snapshot()
    store.write(paths.node("n7"), Node(uuid="v", roles=(COLLECT,)), ANY)
    store.remove(paths.node("n8"), ANY)
    store.write(paths.node("new"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
    assert reader.snapshot().nodes is before.nodes, "nothing was heard"
    clock.now += reader.look_again_seconds
    looks.clear()
    snapshot = reader.snapshot()
    while reader.look_again_seconds < 1:
        clock.now += reader.look_again_seconds
        snapshot = reader.snapshot()
    assert len(looks) > 5
    assert max(looks) <= 10
    assert snapshot.nodes["n7"].record.uuid == "v"
    assert "n8" not in snapshot.nodes
    assert "new" in snapshot.nodes
    assert snapshot.nodes["n9"] is before.nodes["n9"], "it has not changed"


def test_a_flow_whose_revision_comes_later_is_read_then(store: FakeStore) -> None:
    apply(store, tasks=1)
    revision = store.read(paths.revision("web", "1"))
    assert revision is not None
    store.remove(paths.revision("web", "1"), ANY)
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    assert reader.snapshot().flows["web"].problem == "revision 1 is not there"
    store.write(paths.revision("web", "1"), revision.value, ABSENT)
    assert not reader.snapshot().flows["web"].problem


def test_what_is_made_again_is_not_what_it_was(store: FakeStore) -> None:
    """Its version begins again."""
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    store.write(paths.node("n1"), Node(uuid="old", roles=(COLLECT,)), ABSENT)
    assert reader.snapshot().nodes["n1"].record.uuid == "old"
    store.remove(paths.node("n1"), ANY)
    store.write(paths.node("n1"), Node(uuid="new", roles=(COLLECT,)), ABSENT)
    reader.on_watch(str(paths.node("n1")))
    assert reader.snapshot().nodes["n1"].record.uuid == "new"


def test_a_round_ends_when_all_has_just_been_read() -> None:
    """The next one begins a minute later, a little more or less."""
    now = 1000.0
    turn = Round("m", lambda: now)
    assert turn.seconds_left < 0
    turn.begin([paths.journal(f"f.n.0.{number:08}") for number in range(2500)])
    assert (len(turn.take()), turn.under_way) == (1000, True)
    now += 30
    turn.end()
    assert (turn.take(), turn.under_way) == ([], False)
    assert 45 < turn.seconds_left < 75


def test_a_journal_that_cannot_be_read_is_what_its_name_says() -> None:
    path = paths.journal(names.new_id("web", "host.of.mine", 0))
    journal = journal_registry.as_known(path, Unreadable(path, "damaged"))
    assert (journal.flow, journal.primary, journal.closed) == ("web", "host.of.mine", False)


@pytest.mark.parametrize("damage", ["removed", "garbage"])
def test_a_rollout_waits_while_the_revision_before_cannot_be_read(
    store: FakeStore, damage: str
) -> None:
    """Without it nobody knows where the tasks that have not taken the new one may run."""
    apply(store, 1, "rollout: {canary: 1}")
    store.write(paths.plan("web"), Plan(revision=1, epoch=1), ABSENT)
    apply(store, 2, "rollout: {canary: 1}")
    clock = Clock()
    assert Reader(store, "m", clock, clock).snapshot().mine == {"web"}
    text = store.read(paths.revision("web", "1"))
    assert text is not None
    if damage == "removed":
        store.remove(paths.revision("web", "1"), ANY)
    else:
        store.tree.znodes[str(paths.revision("web", "1"))].data = b"{"
    reader = Reader(store, "m", clock, clock)
    snapshot = reader.snapshot()
    assert not snapshot.mine
    assert "/flows/web/revisions/1: " in str(snapshot.flows["web"].unreadable[0])
    store.write(paths.revision("web", "1"), text.value, ABSENT if damage == "removed" else ANY)
    assert reader.snapshot().mine == {"web"}, "it is not looked at again"
    store.remove(paths.revision("web", "1"), ANY)
    flow = store.read(paths.flow("web"))
    assert flow is not None
    store.write(paths.flow("web"), replace(flow.value, rollout_promoted=2), flow.version)
    assert Reader(store, "m", clock, clock).snapshot().mine == {"web"}


def test_texts_that_no_flow_has_any_more_are_not_kept(store: FakeStore) -> None:
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    for tasks in range(1, 9):
        apply(store, tasks)
        reader.on_watch(str(paths.flow("web")))
        reader.snapshot()
    assert [list(texts) for texts in reader._views._specs.values()] == [[(created(store), 8)]]
    store.tree.znodes.pop(str(paths.flow("web")))
    reader.invalidate()
    assert not reader.snapshot().flows
    assert not reader._views._specs


def created(store: FakeStore) -> int:
    found = store.read(paths.flow("web"))
    assert found is not None
    return found.created
