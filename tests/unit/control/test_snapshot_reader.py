"""A master's snapshot is of one moment, and its memory does not outlive the records it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from flumeng.config import TaskRange
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import journal_registry
from flumeng.control.snapshot.reader import WATCHED, Reader, Round
from flumeng.control.snapshot.task_map import Tasks, plan_writes, read_plan
from flumeng.control.zookeeper import ABSENT, ANY, Unreadable
from flumeng.events import journal_names as names
from tests.testkit.clock import Clock
from tests.testkit.scripted_store import ScriptedStore, once
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


def apply(store: FakeStore, tasks: int, more: str = "") -> None:
    apply_flow(Operator(store, "a", "", 0.0), FLOW.format(tasks=tasks) + more)


def remove(store: FakeStore) -> None:
    store.remove(paths.revision("web", "1"), ANY)
    for folder in reversed(flow_folders("web")):
        store.remove(folder, ANY)
    store.remove(paths.flow("web"), ANY)


def test_discovered_partition_is_drained_by_the_ack_of_its_own_flow(store: FakeStore) -> None:
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


def test_master_reads_the_proposed_number_of_tasks(store: FakeStore) -> None:
    apply(store, tasks=1)
    reader = Reader(store, "m", Clock(), Clock())
    assert reader.snapshot().flows["web"].proposed_tasks == 0
    store.write(paths.partitions("web"), Partitions(scaling=Scaling(tasks=3)), ABSENT)
    reader.on_watch(str(paths.partitions("web")))
    assert reader.snapshot().flows["web"].proposed_tasks == 3


def test_empty_partition_without_an_ack_is_drained(store: FakeStore) -> None:
    """A topic that is deleted before anybody has read it."""
    apply(store, tasks=1)
    known = {"p0@broker": Partition(start=9, end=9), "p1@broker": Partition(start=8, end=9)}
    store.write(paths.partitions("web"), Partitions(partitions=known), ABSENT)
    seen = Reader(store, "m", Clock(), Clock()).snapshot()
    assert seen.open_of("web") == ["p1@broker"]


def test_recreated_flow_has_another_revision_1(store: FakeStore) -> None:
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


def test_node_that_joins_during_a_read_is_not_gone(store: FakeStore) -> None:
    """Another master assigns it a task between the read of the live nodes and that of the plan."""
    apply(store, tasks=1)
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="assigned")

    def join() -> None:
        store.write(paths.node("n1"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
        store.write(paths.live_node("n1"), LIVE, ABSENT)
        store.write(paths.plan("web"), Plan(epoch=1, tasks={"collect.0": task}), ANY)

    interrupted = ScriptedStore(store.tree, before_read=once(join))
    reader = Reader(interrupted, "m", Clock(), Clock())
    for top in WATCHED:
        interrupted.watch(top, reader.on_watch)
    snapshot = reader.snapshot()
    assert snapshot.flows["web"].tasks["collect.0"].node == "n1"
    assert snapshot.nodes["n1"].live


def test_no_part_of_a_changing_plan_is_older_than_its_version(store: FakeStore) -> None:
    """A planner on that version would undo the changes written with it."""
    apply(store, tasks=1)
    task = PlannedTask(kind=COLLECT, node="n1", epoch=1, state="assigned")
    tasks = Tasks([{f"collect.{number}": task for number in range(8)}]).spread()
    store.commit(plan_writes("web", Plan(epoch=1, tasks=tasks), Tasks(), ABSENT))

    restarts = 0

    def restart(wanted: Sequence[ZPath[Any]]) -> None:
        """A task is restarted whenever the plan is read."""
        nonlocal restarts
        if paths.plan("web") in wanted:
            restarts += 1
            found = read_plan(store, "web")
            assert found is not None
            before = Tasks.of(found.value.tasks)
            again = replace(task, epoch=1 + restarts)
            after = before.changed({f"collect.{restarts % 8}": again})
            plan = replace(found.value, tasks=after, epoch=again.epoch)
            store.commit(plan_writes("web", plan, before, found.version))

    restless = ScriptedStore(store.tree, before_read=restart)
    reader = Reader(restless, "m", Clock(), Clock())
    for top in WATCHED:
        restless.watch(top, reader.on_watch)
    flow = reader.snapshot().flows["web"]
    found = read_plan(store, "web")
    assert found is not None
    assert restarts > 2
    assert flow.plan_version != found.version or flow.tasks == Tasks.of(found.value.tasks)


def test_drain_limit_starts_again_with_each_mark(store: FakeStore) -> None:
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


def test_changed_setting_prolongs_no_grace_period(store: FakeStore) -> None:
    """A choke that changes now and then does not keep a node that is gone from being missed."""
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


def test_recreated_flow_is_rolled_out_again(store: FakeStore) -> None:
    """Its tasks have the names of those of the flow before, and its epochs begin again as well."""
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


def test_round_reads_everything_again_a_part_with_each_look(store: FakeStore) -> None:
    """Also changes without a notice are seen in the end, and no look takes long."""
    for number in range(20):
        store.write(paths.node(f"n{number}"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
    clock = Clock()
    counting = ScriptedStore(store.tree)
    reader = Reader(counting, "m", clock, clock, part_znodes=10)
    before = reader.snapshot()
    store.write(paths.node("n7"), Node(uuid="v", roles=(COLLECT,)), ANY)
    store.remove(paths.node("n8"), ANY)
    store.write(paths.node("new"), Node(uuid="u", roles=(COLLECT,)), ABSENT)
    assert reader.snapshot().nodes is before.nodes, "nothing was heard"
    clock.now += reader.next_read_seconds
    counting.reads.clear()
    snapshot = reader.snapshot()
    while reader.next_read_seconds < 1:
        clock.now += reader.next_read_seconds
        snapshot = reader.snapshot()
    assert len(counting.reads) > 5
    assert max(map(len, counting.reads)) <= 10
    assert snapshot.nodes["n7"].record.uuid == "v"
    assert "n8" not in snapshot.nodes
    assert "new" in snapshot.nodes
    assert snapshot.nodes["n9"] is before.nodes["n9"], "it has not changed"


def test_revision_that_comes_after_its_flow_is_read_then(store: FakeStore) -> None:
    apply(store, tasks=1)
    revision = store.read(paths.revision("web", "1"))
    assert revision is not None
    store.remove(paths.revision("web", "1"), ANY)
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    assert reader.snapshot().flows["web"].problem == "revision 1 does not exist"
    store.write(paths.revision("web", "1"), revision.value, ABSENT)
    assert not reader.snapshot().flows["web"].problem


def test_recreated_node_is_not_taken_for_the_old_one(store: FakeStore) -> None:
    """Its version begins again."""
    clock = Clock()
    reader = Reader(store, "m", clock, clock)
    store.write(paths.node("n1"), Node(uuid="old", roles=(COLLECT,)), ABSENT)
    assert reader.snapshot().nodes["n1"].record.uuid == "old"
    store.remove(paths.node("n1"), ANY)
    store.write(paths.node("n1"), Node(uuid="new", roles=(COLLECT,)), ABSENT)
    reader.on_watch(str(paths.node("n1")))
    assert reader.snapshot().nodes["n1"].record.uuid == "new"


def test_round_ends_when_everything_has_just_been_read() -> None:
    """The next one begins a minute later, a little more or less."""
    now = 1000.0
    turn = Round("m", lambda: now, part_znodes=1000)
    assert turn.seconds_left < 0
    turn.begin([paths.journal(f"f.n.0.{number:08}") for number in range(2500)])
    assert (len(turn.take()), turn.under_way) == (1000, True)
    now += 30
    turn.end()
    assert (turn.take(), turn.under_way) == ([], False)
    assert 45 < turn.seconds_left < 75


def test_unreadable_journal_is_described_by_its_name() -> None:
    path = paths.journal(names.new_id("web", "host.of.mine", 0))
    journal = journal_registry.record_or_derived(path, Unreadable(path, "damaged"))
    assert (journal.flow, journal.primary, journal.closed) == ("web", "host.of.mine", False)


@pytest.mark.parametrize("damage", ["removed", "garbage"])
def test_rollout_waits_while_the_revision_before_is_unreadable(
    store: FakeStore, damage: str
) -> None:
    """Without it the allowed nodes of tasks that have not taken the new one are unknown."""
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


def test_texts_of_former_revisions_are_not_kept(store: FakeStore) -> None:
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
