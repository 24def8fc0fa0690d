"""A new revision is rolled out, and a place that changes with it holds at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from flumeng.config import CollectPlace, IngestPlace, Place, Rollout
from flumeng.control.planner.actions import Revert
from flumeng.control.planner.planner import plan
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Unreadable, Version
from tests.unit.control.planning import (
    at_rest,
    carried_out,
    cluster,
    flow,
    journals,
    node,
    obeyed,
    owners,
)
from zkschema import paths
from zkschema.records import COLLECT, INGEST, Flow, Node


def rolling(*, failing: str = "", canary: int = 1, max_parallel: int = 2) -> Snapshot:
    """Revision 2 of a flow of six tasks was applied, and one step of its rollout taken."""
    settled = at_rest(cluster([flow(tasks=6)], [node("a"), node("b"), node("c")]))
    assert settled.flows["f"].plan.revision == 1
    applied_ = replace(
        settled.flows["f"],
        record=Flow(revision=2),
        version=Version(1),
        rollout=Rollout(canary=canary, max_parallel=max_parallel),
    )
    begun = replace(settled, flows={"f": applied_})
    return obeyed(carried_out(begun), failing)


def told(snapshot: Snapshot) -> Counter[int]:
    return Counter(t.revision for view in snapshot.nodes.values() for t in view.assignment.tasks)


def all_settled(snapshot: Snapshot) -> Snapshot:
    keys = (key for view in snapshot.nodes.values() if view.status for key in view.status.tasks)
    return replace(snapshot, settled=frozenset(keys))


def proven(snapshot: Snapshot) -> Snapshot:
    """Tasks with their flow's current revision have run it long enough."""
    keys = (
        key
        for view in snapshot.nodes.values()
        for key, said in (view.status.tasks.items() if view.status else ())
        if said.revision == snapshot.flows["f"].record.revision
    )
    return replace(snapshot, settled=frozenset(keys))


def test_a_revision_goes_to_the_canary_then_in_waves() -> None:
    state = rolling()
    assert told(state) == {1: 5, 2: 1}
    assert plan(state) == [], "the canary has not run it long enough"
    seen = []
    for _ in range(6):
        state = obeyed(carried_out(all_settled(state)))
        seen.append(told(state)[2])
    assert seen == [3, 5, 6, 6, 6, 6]
    assert state.flows["f"].plan.revision == 2


def test_failed_canary_rolls_the_flow_back() -> None:
    state = rolling(failing="a")
    (back,) = (action for action in plan(state) if isinstance(action, Revert))
    assert back.record.revision == 1
    assert "f/collect.0 on a failed with revision 2: no such column" in back.record.went_back
    after = at_rest(carried_out(state, [back]))
    assert told(after) == {1: 6}
    assert after.flows["f"].record.revision == 1


def test_a_task_that_failed_before_the_rollout_does_not_end_it() -> None:
    state = rolling(failing="b")
    assert not [action for action in plan(state) if isinstance(action, Revert)]


def test_a_rollout_does_not_wait_for_nodes_that_are_away() -> None:
    settled = at_rest(
        cluster([flow()], [node("a", roles=(INGEST,)), node("b", roles=(INGEST,)), node("c")])
    )
    away = replace(settled.nodes["a"], live=False)
    rolled = replace(
        settled.flows["f"], record=Flow(revision=2), version=Version(1), rollout=Rollout()
    )
    state = replace(settled, flows={"f": rolled}, nodes={**settled.nodes, "a": away})
    for _ in range(4):
        state = obeyed(carried_out(all_settled(state)))
    assert state.flows["f"].plan.revision == 2
    assert [task.revision for task in state.nodes["a"].assignment.tasks] == [2]


def test_rollout_does_not_wait_for_unreadable_nodes() -> None:
    sources = [node(name, roles=(INGEST,)) for name in "ab"]
    settled = at_rest(cluster([flow()], [*sources, node("c")]))
    rolled = replace(
        settled.flows["f"], record=Flow(revision=2), version=Version(1), rollout=Rollout()
    )
    for path in (paths.node("a"), paths.status("a")):
        unreadable = replace(
            settled.nodes["a"], unreadable=(Unreadable(path, "not JSON"),), status=None
        )
        nodes = {**settled.nodes, "a": unreadable}
        state = replace(settled, flows={"f": rolled}, nodes=nodes)
        for _ in range(6):
            after = obeyed(carried_out(proven(state)))
            state = replace(after, nodes={**after.nodes, "a": nodes["a"]})
        assert state.flows["f"].plan.revision == 2, f"it waits for {path}"


def test_a_task_that_changes_hands_in_a_rollout_keeps_its_revision() -> None:
    state = rolling()
    (canary,) = (
        t for view in state.nodes.values() for t in view.assignment.tasks if t.revision == 2
    )
    owner = state.flows["f"].tasks[canary.task].node
    assert owner is not None
    lost = replace(state.nodes[owner], live=False, down=True)
    after = carried_out(replace(state, nodes={**state.nodes, owner: lost}))
    moved = after.flows["f"].tasks[canary.task]
    assert (moved.node != owner, moved.revision) == (True, 2)


def test_revision_without_a_rollout_is_taken_by_all_tasks_at_once() -> None:
    settled = at_rest(cluster([flow(tasks=6)], [node("a"), node("b")]))
    view = replace(settled.flows["f"], record=Flow(revision=2), version=Version(1))
    assert told(carried_out(replace(settled, flows={"f": view}))) == {2: 6}


# -- a place that changes with the revision


def labelled(name: str, role: str, roles: tuple[str, ...] = (COLLECT,)) -> NodeView:
    return NodeView(name, Node(uuid=name, roles=roles, labels={"role": role}), live=True)


def relocating(place: Place, before: Place, nodes: list[NodeView], **limits: Any) -> Snapshot:
    """All tasks at rest under the place ``before``; revision 2 has another place."""
    first = FlowView("f", Flow(revision=1), Version(0), before)
    settled = at_rest(cluster([first], nodes))
    view = replace(
        settled.flows["f"],
        record=Flow(revision=2),
        version=Version(1),
        place=place,
        rollout=Rollout(canary=1, max_parallel=2, **limits),
    )
    return replace(settled, flows={"f": view})


def by_role(role: str, tasks: int = 6) -> Place:
    return Place(collect=CollectPlace(labels={"role": role}, tasks=tasks))


def test_changed_place_holds_at_once_and_the_canary_tries_the_revision_first() -> None:
    nodes = [labelled("a", "old"), labelled("b", "old"), labelled("c", "new")]
    state = at_rest(relocating(by_role("new", 3), by_role("old"), nodes))
    seen = []
    for _ in range(4):
        assert owners(state) == {"c": 3}
        seen.append(told(state))
        state = at_rest(proven(state))
    assert seen[0] == {1: 2, 2: 1}
    assert seen[-1] == {2: 3}
    assert state.flows["f"].plan.revision == 2


def test_each_journal_has_one_task_when_the_flow_moves_to_another_place() -> None:
    nodes = [labelled(f"{role[0]}{n}", role) for role in ("old", "new") for n in range(8)]
    for tasks, count in ((None, 128), (1, 4998)):
        old, new = (
            Place(collect=CollectPlace(labels={"role": role}, tasks=tasks))
            for role in ("old", "new")
        )
        state = at_rest(replace(relocating(new, old, nodes), journals=journals(count)))
        read = [name for t in state.flows["f"].tasks.values() for name in t.partitions]
        assert sorted(read) == sorted(journals(count))


def test_tasks_stay_while_no_node_matches_the_new_place() -> None:
    nodes = [labelled("a", "old"), labelled("b", "old")]
    moved = relocating(by_role("nwe"), by_role("old"), nodes)
    state = at_rest(replace(moved, journals=journals(6)))
    for _ in range(5):
        assert owners(state) == {"a": 3, "b": 3}
        state = at_rest(proven(state))
    assert state.flows["f"].plan.revision == 2


def test_sources_move_to_a_new_place_and_take_the_revision_in_turn() -> None:
    def sources(role: str) -> Place:
        return Place(ingest=IngestPlace(labels={"role": role}))

    nodes = [labelled(f"{role[0]}{n}", role, (INGEST,)) for role in ("old", "new") for n in (1, 2)]
    nodes.append(node("c"))
    state = at_rest(relocating(sources("new"), sources("old"), nodes))
    seen = []
    for _ in range(3):
        tasks = state.flows["f"].tasks.values()
        seen.append(sorted((t.node, t.revision == 2) for t in tasks if t.kind == INGEST))
        state = at_rest(proven(state))
    assert seen == [
        [("n1", True), ("n2", False)],
        [("n1", True), ("n2", True)],
        [("n1", True), ("n2", True)],
    ]


def test_paused_rollout_stands_still_and_a_promoted_one_is_over() -> None:
    state = all_settled(rolling())
    view = state.flows["f"]

    def with_record(**fields: int) -> Snapshot:
        record = replace(view.record, **fields)  # type: ignore[arg-type]
        return replace(state, flows={"f": replace(view, record=record)})

    assert plan(with_record(rollout_paused=2)) == []
    assert plan(with_record(rollout_paused=1)), "it was another rollout that was paused"
    assert told(carried_out(with_record(rollout_promoted=2))) == {2: 6}
