"""What the planner does with a new revision, and with a place that changes with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from flumeng.config import CollectPlace, IngestPlace, Place, Rollout
from flumeng.control.planner import Planner, Revert, plan
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Unreadable, Version
from tests.unit.planning import (
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
from zkschema.records import (
    COLLECT,
    INGEST,
    Flow,
    Node,
)


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
    """What runs its flow's current revision now has done so for long enough."""
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


def test_a_canary_that_fails_takes_the_flow_back() -> None:
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


def test_a_rollout_does_not_wait_for_nodes_of_which_nothing_can_be_read() -> None:
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
    lost = replace(state.nodes[owner], live=False, lost=True)
    after = carried_out(replace(state, nodes={**state.nodes, owner: lost}))
    moved = after.flows["f"].tasks[canary.task]
    assert (moved.node != owner, moved.revision) == (True, 2)


def test_without_a_rollout_all_take_a_revision_at_once() -> None:
    settled = at_rest(cluster([flow(tasks=6)], [node("a"), node("b")]))
    view = replace(settled.flows["f"], record=Flow(revision=2), version=Version(1))
    assert told(carried_out(replace(settled, flows={"f": view}))) == {2: 6}


# -- a place that changes with the revision


def labelled(name: str, role: str, roles: tuple[str, ...] = (COLLECT,)) -> NodeView:
    return NodeView(name, Node(uuid=name, roles=roles, labels={"role": role}), live=True)


def relocating(place: Place, before: Place, nodes: list[NodeView], **limits: Any) -> Snapshot:
    """All at rest under the place ``before``; revision 2 wants another one."""
    first = FlowView("f", Flow(revision=1), Version(0), before)
    settled = at_rest(cluster([first], nodes))
    view = replace(
        settled.flows["f"],
        record=Flow(revision=2),
        version=Version(1),
        place=place,
        place_before=before,
        rollout=Rollout(canary=1, max_parallel=2, **limits),
    )
    return replace(settled, flows={"f": view})


def by_role(role: str, tasks: int = 6) -> Place:
    return Place(collect=CollectPlace(labels={"role": role}, tasks=tasks))


def test_a_changed_place_is_tried_by_the_canary_first() -> None:
    nodes = [labelled("a", "old"), labelled("b", "old"), labelled("c", "new")]
    state = relocating(by_role("new", 3), by_role("old"), nodes)
    state = at_rest(state)
    assert owners(state)["c"] == 1
    assert told(state) == {1: 5, 2: 1}
    seen = []
    for _ in range(5):
        state = at_rest(proven(state))
        seen.append((owners(state)["c"], len(state.flows["f"].tasks)))
    assert seen == [(3, 6), (5, 6), (6, 6), (3, 3), (3, 3)]
    assert state.flows["f"].plan.revision == 2


def test_no_journal_is_lost_or_doubled_when_a_rollout_ends_with_other_tasks() -> None:
    """The tasks of the old place are ended or begun in the plan in which the new place holds."""
    nodes = [labelled(f"{role[0]}{n}", role) for role in ("old", "new") for n in range(8)]
    for tasks, first, last, left in ((None, 128, 41, nodes), (1, 4998, 5004, nodes[8:])):
        old, new = (
            Place(collect=CollectPlace(labels={"role": role}, tasks=tasks))
            for role in ("old", "new")
        )
        state = relocating(new, old, nodes)
        state = at_rest(replace(state, journals=journals(first)))
        while any(task.revision != 2 for task in state.flows["f"].tasks.values()):
            state = at_rest(proven(state))
        changed = replace(
            state,
            journals=journals(last),
            nodes={view.name: state.nodes[view.name] for view in left},
        )
        assert state.flows["f"].plan.revision == 1
        ended = carried_out(proven(changed))
        assert ended.flows["f"].plan.revision == 2
        read = [name for t in ended.flows["f"].tasks.values() for name in t.partitions]
        assert sorted(read) == sorted(journals(last))


def test_a_place_that_no_node_has_is_never_proven_and_goes_back() -> None:
    nodes = [labelled("a", "old"), labelled("b", "old")]
    state = at_rest(relocating(by_role("nwe"), by_role("old"), nodes))
    for _ in range(3):
        state = at_rest(all_settled(state))
    assert owners(state) == {"a": 3, "b": 3}
    assert state.flows["f"].plan.revision == 1
    late = replace(state, stalled=frozenset({"f"}))
    (back,) = (action for action in plan(late) if isinstance(action, Revert))
    assert "revision 2 made no progress for 600 s: f/collect.0 on" in back.record.went_back
    after = at_rest(replace(carried_out(late, [back]), stalled=frozenset()))
    assert told(after) == {1: 6}


def test_sources_begin_at_new_nodes_in_turn_and_end_at_old_ones_in_the_end() -> None:
    def sources(role: str) -> Place:
        return Place(ingest=IngestPlace(labels={"role": role}))

    nodes = [labelled(f"{role[0]}{n}", role, (INGEST,)) for role in ("old", "new") for n in (1, 2)]
    nodes.append(node("c"))
    state = at_rest(relocating(sources("new"), sources("old"), nodes))
    seen = []
    for _ in range(4):
        tasks = state.flows["f"].tasks
        seen.append(sorted(t.node for t in tasks.values() if t.kind == INGEST and t.node))
        state = at_rest(proven(state))
    assert seen[:3] == [["n1", "o1", "o2"], ["n1", "n2", "o1", "o2"], ["n1", "n2"]]


def test_where_no_source_ran_before_the_first_to_begin_is_a_canary_too() -> None:
    def sources(role: str) -> Place:
        return Place(ingest=IngestPlace(labels={"role": role}))

    nodes = [labelled(f"n{n}", "new", (INGEST,)) for n in range(9)]
    begun = relocating(sources("new"), sources("none"), [*nodes, node("c")])
    state = at_rest(replace(begun, settled=frozenset({"f/collect.0"})))
    seen = []
    for _ in range(3):
        state = at_rest(proven(state))
        seen.append(sum(task.kind == INGEST for task in state.flows["f"].tasks.values()))
    assert seen == [3, 5, 7]


def test_a_rollout_that_is_paused_stands_still_and_one_promoted_by_hand_is_over() -> None:
    state = all_settled(rolling())
    view = state.flows["f"]

    def with_record(**fields: int) -> Snapshot:
        record = replace(view.record, **fields)  # type: ignore[arg-type]
        return replace(state, flows={"f": replace(view, record=record)})

    assert plan(with_record(rollout_paused=2)) == []
    assert plan(with_record(rollout_paused=1)), "it was another rollout that was paused"
    assert told(carried_out(with_record(rollout_promoted=2))) == {2: 6}


def test_weights_that_change_with_the_end_of_a_rollout_are_balanced_at_once() -> None:
    """Also by a planner that has found before that no move was worth it."""
    settled = at_rest(cluster([flow(tasks=1)], [node("a", slots=2.0), node("b")]))
    view = settled.flows["f"]
    heavy = CollectPlace(tasks=1, weight={"slots": 4.0})
    applied_ = replace(
        view,
        record=Flow(revision=2),
        version=Version(1),
        place=Place(collect=heavy),
        place_before=view.place,
        rollout=Rollout(canary=1, max_parallel=1),
    )
    on_small = {name: replace(task, node="a", epoch=9) for name, task in view.plan.tasks.items()}
    begun = replace(applied_, plan=replace(view.plan, tasks=on_small, epoch=9))
    planner = Planner()
    state = replace(settled, flows={"f": begun})
    for _ in range(12):
        for seen in (state, proven(state)):
            actions = planner.plan(seen)
            assert actions == plan(seen)
            state = carried_out(seen, actions)
        state = obeyed(state)
    (task,) = state.flows["f"].tasks.values()
    assert task.node == "b"
