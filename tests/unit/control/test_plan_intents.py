"""Journals stay with a task until the batch is acked that it has decided."""

from __future__ import annotations

from dataclasses import replace

from flumeng.config import CollectPlace, Place
from flumeng.control.planner.actions import Replan
from flumeng.control.planner.effects import applied
from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.snapshot import FlowView, IntentView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from tests.unit.control.planning import obeyed
from zkschema.records import Flow, Intent, Journal, Node, Partition, PlannedTask

JOURNALS = {
    f"j{number}": Journal(flow="f", node="n", primary="n", term=1, in_sync=())
    for number in range(6)
}


def carried_out(snapshot: Snapshot) -> Snapshot:
    for action in plan(snapshot):
        snapshot = applied(snapshot, action)
    assert plan(snapshot) == []
    return snapshot


def running(tasks: int) -> Snapshot:
    """A flow on two nodes; its decided batches are unknown."""
    place = Place(collect=CollectPlace(tasks=tasks))
    nodes = {
        name: NodeView(name, Node(uuid=name, roles=("collect",)), live=True) for name in ("a", "b")
    }
    flow = FlowView("f", Flow(revision=1), Version(0), place, by_batch=True)
    fresh = Snapshot({"f": flow}, nodes, JOURNALS, frozenset(), frozenset({"f"}))
    return obeyed(carried_out(fresh))


def wanted(
    snapshot: Snapshot, tasks: int | None = 1, state: str = "running", discard: bool = False
) -> Snapshot:
    flow = snapshot.flows["f"]
    place = Place(collect=CollectPlace(tasks=tasks))
    record = replace(flow.record, state=state, discard=discard)
    return replace(snapshot, flows={"f": replace(flow, place=place, record=record)})


def task(snapshot: Snapshot, number: int) -> PlannedTask:
    return snapshot.flows["f"].tasks[f"collect.{number}"]


def intent(epoch: int, *ranges: str) -> IntentView:
    reads = dict.fromkeys(ranges, (0, 5))
    record = Intent(epoch=epoch, series="s", number=7, revision=1, splits=1, ranges=reads)
    return IntentView(record, Version(14))


def decided(snapshot: Snapshot, *numbers: int) -> Snapshot:
    """These tasks have a decided batch, the others none."""
    views = {
        f"collect.{number}": intent(
            task(snapshot, number).epoch, *task(snapshot, number).partitions
        )
        for number in numbers
    }
    return replace(snapshot, intents={"f": views})


def reads(snapshot: Snapshot) -> dict[str, int]:
    return {name: len(task.partitions) for name, task in snapshot.flows["f"].tasks.items()}


def test_no_journal_leaves_a_task_before_its_intent_was_read() -> None:
    planner = Planner()
    fewer = wanted(running(3), tasks=1)
    assert planner.plan(fewer) == []
    assert planner.held == {"f": {"collect.1", "collect.2"}}
    known = replace(fewer, intents={"f": {}})
    assert len(planner.plan(known)) == len(plan(known)) > 0
    assert planner.held == {}
    assert reads(carried_out(known)) == {"collect.0": 6}


def test_flow_without_batch_numbering_targets_waits_for_nothing() -> None:
    fewer = wanted(running(3), tasks=1)
    other = replace(fewer, flows={"f": replace(fewer.flows["f"], by_batch=False)})
    (replan,) = (action for action in plan(other) if isinstance(action, Replan))
    assert replan.fences == ()
    assert reads(carried_out(other)) == {"collect.0": 6}


def test_task_that_loses_journals_is_fenced_under_the_version_that_was_read() -> None:
    """Its owner may not know it yet, and could decide a batch of them."""
    before = running(2)
    ended = intent(task(before, 0).epoch)
    more = replace(wanted(before, tasks=3), intents={"f": {"collect.0": ended}})
    (replan,) = (action for action in plan(more) if isinstance(action, Replan))
    fences = {fence.task: fence for fence in replan.fences}
    assert set(fences) == {"collect.0", "collect.1"}
    after = carried_out(more)
    assert reads(after) == {"collect.0": 2, "collect.1": 2, "collect.2": 2}
    for number in (0, 1):
        assert fences[f"collect.{number}"].epoch == task(after, number).epoch
        assert task(after, number).epoch > task(before, number).epoch
    record = fences["collect.0"].record
    assert (record.series, record.number, record.ranges) == ("s", 7, {})


def test_a_busy_task_drains_before_journals_leave_it() -> None:
    more = decided(wanted(running(1), tasks=3), 0)
    marked = obeyed(carried_out(more))
    assert (task(marked, 0).state, task(marked, 0).target) == ("draining", None)
    assert "when its batch is finished" in task(marked, 0).why
    assert reads(marked) == {"collect.0": 6}
    finished = carried_out(replace(marked, intents={"f": {"collect.0": intent(1)}}))
    assert reads(finished) == {"collect.0": 2, "collect.1": 2, "collect.2": 2}
    assert {task(finished, number).state for number in range(3)} == {"assigned"}


def test_tasks_that_release_journals_wait_for_each_other() -> None:
    """Else one of them would always be in the middle of a batch."""
    one_busy = decided(wanted(running(2), tasks=3), 0)
    first = obeyed(carried_out(one_busy))
    assert [task(first, number).state for number in (0, 1)] == ["draining", "assigned"]
    now_the_other = obeyed(carried_out(decided(first, 1)))
    assert [task(now_the_other, number).state for number in (0, 1)] == ["draining", "draining"]
    assert task(now_the_other, 0).epoch == task(first, 0).epoch, "it was given away meanwhile"
    both = carried_out(decided(now_the_other))
    assert reads(both) == {"collect.0": 2, "collect.1": 2, "collect.2": 2}
    late = replace(decided(now_the_other, 1), overdue=frozenset({"f/collect.0"}))
    assert task(carried_out(late), 0).state == "assigned", "it stands still for ever"


def test_task_drains_as_soon_as_a_partition_of_its_batch_ends() -> None:
    """Also when the planner knows the intent already, and nothing else has changed."""
    found = {"p0@broker": Partition(end=None)}
    settled = running(1)
    flow = replace(settled.flows["f"], partitions=found)
    busy = decided(obeyed(carried_out(replace(settled, flows={"f": flow}))), 0)
    planner = Planner()
    assert planner.plan(busy) == []
    ended = replace(busy.flows["f"], partitions={"p0@broker": Partition(end=7)})
    over = replace(busy, flows={"f": ended}, drained=frozenset({"f/p0@broker"}))
    (replan, *_) = planner.plan(over)
    assert isinstance(replan, Replan)
    assert replan.plan.tasks["collect.0"].state == "draining"


def test_task_of_a_dead_owner_moves_with_its_batch() -> None:
    settled = running(2)
    owner = settled.nodes[task(settled, 0).node or ""]
    gone = replace(owner, live=False, down=True)
    dead = decided(replace(settled, nodes={**settled.nodes, owner.name: gone}), 0)
    moved = obeyed(carried_out(dead))
    assert task(moved, 0).node not in (None, owner.name)
    assert task(moved, 0).partitions == task(settled, 0).partitions
    repeating = wanted(moved, tasks=1)
    assert plan(wanted(repeating, tasks=2)) == []
    ending = wanted(moved, state="suspended")
    kept = carried_out(ending)
    assert list(kept.flows["f"].tasks) == ["collect.0"]
    assert task(kept, 0).state == "assigned", "it has to repeat the batch first"
    assert carried_out(decided(kept)).flows["f"].tasks == {}


def test_suspended_flow_finishes_its_decided_batch() -> None:
    suspended = decided(wanted(running(2), tasks=2, state="suspended"), 1)
    kept = obeyed(carried_out(suspended))
    assert list(kept.flows["f"].tasks) == ["collect.1"]
    assert task(kept, 1).state == "draining"
    again = obeyed(carried_out(kept))
    assert task(again, 1).state == "assigned", "its owner has let go, and the batch is not acked"
    assert task(again, 1).epoch > task(kept, 1).epoch
    done = replace(again, intents={"f": {"collect.1": intent(1)}})
    assert carried_out(done).flows["f"].tasks == {}


def test_unreadable_intent_counts_as_a_decided_batch() -> None:
    fewer = wanted(running(2), tasks=1)
    damaged = replace(fewer, intents={"f": {"collect.1": IntentView(None, Version(3))}})
    assert plan(damaged) == []


def test_discarded_events_are_not_waited_for() -> None:
    deleted = decided(wanted(running(2), state="deleted", discard=True), 0, 1)
    assert carried_out(obeyed(carried_out(deleted))).flows == {}


def test_lost_plan_is_recreated_around_the_decided_batches() -> None:
    settled = running(2)
    known = decided(settled, 1).intents
    lost = FlowView("f", Flow(revision=1), Version(0), Place(), epoch_floor=9, by_batch=True)
    snapshot = replace(settled, flows={"f": lost})
    nobody_looked = Planner()
    nobody_looked.plan(snapshot)
    assert nobody_looked.held == {"f": {"collect.0"}}
    anew = carried_out(replace(snapshot, intents=known))
    assert set(task(settled, 1).partitions) <= set(task(anew, 1).partitions)
    assert sum(reads(anew).values()) == len(JOURNALS)


def test_acceptable_number_of_tasks_around_a_batch_is_kept() -> None:
    """One would be right. With the one that may not end yet there are two, which are not too many:
    else it would drain, and stay after all."""
    shrunk = carried_out(decided(wanted(running(5), tasks=None), 1))
    assert reads(shrunk) == {"collect.0": 3, "collect.1": 3}
    assert task(shrunk, 1).state == "assigned"
