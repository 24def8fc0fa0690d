"""How tasks have ended, as their flow's plan tells it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flumeng.config import CollectPlace, Place
from flumeng.control.planner.actions import Replan
from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.snapshot.task_map import Tasks
from flumeng.control.zookeeper import Version
from flumeng.control.zookeeper.transaction import Scale
from tests.unit.control.planning import settle
from zkschema.codec import decode, encode, text_of
from zkschema.records import EndedTask, Flow, Journal, Node, Plan, TaskStatus

NOW = 1_700_000_000.0


def cluster(tasks: int = 1, nodes: int = 2, journals: int = 2) -> Snapshot:
    views = {
        f"n{number}": NodeView(f"n{number}", Node(uuid="u", roles=("collect",)), live=True)
        for number in range(nodes)
    }
    flow = FlowView("f", Flow(revision=1), Version(0), Place(collect=CollectPlace(tasks=tasks)))
    journal = Journal(flow="f", node="h", primary="h", term=1, in_sync=())
    named = {f"j{number}": journal for number in range(journals)}
    return settle(Snapshot({"f": flow}, views, named, frozenset(), frozenset({"f"}), now=NOW))


def says(snapshot: Snapshot, state: str, error: str = "", epoch_seen: int = 0) -> Snapshot:
    """The owner of the only task reports this of it."""
    task = snapshot.flows["f"].tasks["collect.0"]
    node = snapshot.nodes[task.node or ""]
    assert node.status is not None
    told = TaskStatus(
        epoch=task.epoch, revision=1, state=state, error=error or None, epoch_seen=epoch_seen
    )
    status = replace(node.status, tasks={"f/collect.0": told})
    return change(snapshot, node.name, status=status)


def change(snapshot: Snapshot, node: str, **fields: object) -> Snapshot:
    view = replace(snapshot.nodes[node], **fields)  # type: ignore[arg-type]
    return replace(snapshot, nodes={**snapshot.nodes, node: view})


def state(snapshot: Snapshot, wanted: str, *, discard: bool = False) -> Snapshot:
    flow = snapshot.flows["f"]
    record = replace(flow.record, state=wanted, discard=discard)
    return replace(snapshot, flows={"f": replace(flow, record=record)})


def told(snapshot: Snapshot) -> list[tuple[str, str, int, str, str]]:
    ended = snapshot.flows["f"].plan.ended
    return [(e.task, e.node, e.epoch, e.how, e.why) for e in ended]


def test_task_that_begins_and_continues_has_not_ended() -> None:
    assert told(cluster()) == []
    more = {"j9": Journal(flow="f", node="h", primary="h", term=1, in_sync=())}
    settled = cluster()
    assert told(settle(replace(settled, journals={**settled.journals, **more}))) == []


def test_task_whose_node_is_gone_has_failed() -> None:
    lost = settle(change(cluster(), "n0", live=False, down=True))
    assert told(lost) == [("collect.0", "n0", 1, "failed", "node n0 is down")]
    assert lost.flows["f"].plan.ended[0].time == NOW


def test_task_with_nothing_left_to_read_has_not_failed() -> None:
    done = replace(cluster(), drained=frozenset({"j0", "j1"}))
    lost = settle(change(says(done, "failed", "no space"), "n0", live=False, down=True))
    assert [how for _, _, _, how, _ in told(lost)] == ["stopped"]


def test_drained_task_was_stopped_and_keeps_the_reason() -> None:
    settled = cluster()
    record = replace(settled.nodes["n0"].record, desired="draining")
    drained = settle(change(settled, "n0", record=record))
    assert told(drained) == [("collect.0", "n0", 1, "stopped", "node n0 may no longer run it")]


def test_task_taken_past_the_drain_limit_notes_it() -> None:
    settled = cluster()
    record = replace(settled.nodes["n0"].record, desired="draining")
    marked = settle(change(settled, "n0", record=record), obedient=False)
    taken = settle(replace(marked, overdue=frozenset({"f/collect.0"})), obedient=False)
    assert told(taken) == [
        (
            "collect.0",
            "n0",
            1,
            "stopped",
            "node n0 may no longer run it; node n0 did not release it in time",
        )
    ]


def test_superseded_task_has_not_failed() -> None:
    """Its node reports that an ack has a higher epoch, and gets the task again."""
    settled = settle(says(cluster(), "stopped", "superseded", epoch_seen=7))
    assert told(settled) == [
        ("collect.0", "n0", 1, "superseded", "its acks already have the higher epoch 7")
    ]


def test_task_that_failed_until_it_was_removed_has_failed() -> None:
    settled = says(cluster(), "failed", "no space left")
    record = replace(settled.nodes["n0"].record, desired="draining")
    marked = settle(change(settled, "n0", record=record), obedient=False)
    taken = settle(replace(marked, overdue=frozenset({"f/collect.0"})), obedient=False)
    assert told(taken) == [("collect.0", "n0", 1, "failed", "no space left")]


def test_task_that_ends_with_its_flow_succeeded_only_when_all_is_read() -> None:
    settled = cluster()
    assert told(settle(state(settled, "suspended")))[-1][3:] == ("stopped", "the flow is suspended")
    done = replace(state(settled, "stopped"), drained=frozenset({"j0", "j1"}))
    assert told(settle(done))[-1][3:] == ("succeeded", "it has read everything")
    failing = replace(says(state(settled, "stopped"), "failed", "full"), drained=done.drained)
    assert told(settle(failing))[-1][3] == "succeeded"
    ends = state(settled, "deleted", discard=True)
    (first, *_) = [a for a in plan(ends) if isinstance(a, Replan)]
    assert [(e.how, e.why) for e in first.plan.ended] == [
        ("stopped", "the flow is deleted without waiting for its events")
    ]


def test_surplus_task_ends_as_stopped_with_the_reason() -> None:
    settled = cluster(tasks=2)
    fewer = replace(settled.flows["f"], place=Place(collect=CollectPlace(tasks=1)))
    settled = settle(replace(settled, flows={"f": fewer}))
    assert [(task, how, why) for task, _, _, how, why in told(settled)] == [
        ("collect.1", "stopped", "other tasks read its partitions")
    ]


def test_history_of_ended_tasks_keeps_the_newest_hundred() -> None:
    """A flow whose thousand tasks end at once, again and again."""
    snapshot = cluster(tasks=1000, nodes=4, journals=1000)
    for node in ("n0", "n1", "n2"):
        snapshot = settle(change(snapshot, node, live=False, down=True))
        found = snapshot.flows["f"].plan.ended
        assert len(found) == 100
        assert found[-1].node == node
    assert len(encode(replace(snapshot.flows["f"].plan, tasks={}))) < 10_000


@pytest.mark.slow
def test_entry_of_a_plan_in_steps_is_written_once() -> None:
    """For any master that continues: an entry comes with the step that ends the task."""
    snapshot = cluster(tasks=2000, nodes=3, journals=40_000)
    small = replace(snapshot, scale=Scale(limit_bytes=250_000))
    lost = change(small, "n0", live=False, down=True)
    actions = [a for a in Planner().plan(lost) if isinstance(a, Replan)]
    assert len(actions) > 1
    known: set[str] = set()
    for action in actions:
        changes = Tasks.of(action.plan.tasks).differences(action.before)
        handed = {name for name, old, new in changes if old and new and old.node != new.node}
        fresh = {entry.task for entry in action.plan.ended} - known
        assert fresh <= handed
        known |= fresh
    done = actions[-1].plan.ended
    assert len({entry.task for entry in done}) == len(done) == 100


def test_planner_that_lost_its_memory_writes_the_same() -> None:
    lost = change(cluster(tasks=20, nodes=3, journals=40), "n1", live=False, down=True)
    assert Planner().plan(lost) == plan(lost)


def test_plan_of_an_older_version_has_no_history() -> None:
    assert decode(Plan, b'{"v":1,"epoch":1,"tasks":{}}').ended == ()


def test_older_master_keeps_unknown_fields_of_a_plan() -> None:
    """It reads plans and writes them, while the cluster is upgraded."""
    entry = EndedTask(task="collect.0", node="n1", epoch=1, how="failed", why="", time=0.0)
    written = json.loads(text_of(Plan(epoch=2, ended=(entry,))))
    unknown = {"ended_later": written.pop("ended"), **written}
    kept = decode(Plan, json.dumps(unknown).encode())
    assert json.loads(text_of(replace(kept, epoch=3)))["ended_later"] == unknown["ended_later"]
