"""No journal leaves a task whose batch is decided and not acked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.config import CollectPlace, Place
from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from tests.props.planning import BOTH, RANGE, apply_all, apply_one, check_legal, intents, nodes_obey
from zkschema.records import Flow, Journal, Node, Partition


@st.composite
def deciding(draw: st.DrawFn) -> list[Snapshot]:
    """A flow whose tasks decide batches, while the number of its tasks, its state, its journals,
    its discovered partitions and the nodes change."""
    journal = Journal(flow="f", node="n0", primary="n0", term=1, in_sync=())
    number = st.sampled_from([None, None, 1, 2, 3, 5, RANGE])

    def place() -> Place:
        return Place(collect=CollectPlace(tasks=draw(number)))

    def some_journals() -> dict[str, Journal]:
        return {f"j{n}": journal for n in range(draw(st.sampled_from([1, 3, 9, 90])))}

    views = {
        name: NodeView(name, Node(uuid=name, roles=BOTH), live=True)
        for name in (f"n{n}" for n in range(draw(st.integers(1, 6))))
    }
    flow = FlowView("f", Flow(revision=1), Version(0), place(), by_batch=True)
    fresh = Snapshot({"f": flow}, views, some_journals(), frozenset(), frozenset({"f"}))
    seen = [nodes_obey(apply_all(fresh))]
    for _ in range(draw(st.integers(1, 4))):
        now = seen[-1]
        kinds = ["place", "place", "state", "journals", "node", "ends", "ends", "none"]
        what = draw(st.sampled_from(kinds))
        if "f" in now.flows and what in ("place", "state"):
            view = now.flows["f"]
            states = ["running", "suspended", "stopped", "deleted"]
            state = draw(st.sampled_from(states)) if what == "state" else view.record.state
            proposed = draw(st.integers(0, 6))
            view = replace(view, record=replace(view.record, state=state), proposed_tasks=proposed)
            now = replace(now, flows={"f": replace(view, place=place())})
        if what == "journals":
            now = replace(now, journals=some_journals())
        if what == "ends" and now.flows:
            found = {
                f"p{n}@broker": Partition(end=draw(st.sampled_from([None, 7]))) for n in range(5)
            }
            ending = {f"f/{name}" for name, one in found.items() if one.end is not None}
            drained = frozenset(name for name in ending if draw(st.booleans()))
            flow = replace(now.flows["f"], partitions=found, discovers=True)
            now = replace(now, flows={"f": flow}, drained=drained)
        if what == "node":
            name = draw(st.sampled_from(sorted(now.nodes)))
            live = draw(st.booleans())
            wanted = replace(now.nodes[name].record, desired=draw(DESIRED))
            later = replace(now.nodes[name], live=live, down=not live, record=wanted)
            now = replace(now, nodes={**now.nodes, name: later})
        late = [f"f/{name}" for name in now.flows["f"].draining] if now.flows else []
        overdue = frozenset(name for name in late if draw(st.integers(0, 3)) == 0)
        now = replace(now, overdue=overdue, intents=draw(intents(now.flows)))
        seen.append(now)
        if draw(st.booleans()):
            seen.append(nodes_obey(apply_all(now)))
    return seen


DESIRED = st.sampled_from(["active", "active", "draining"])


@pytest.mark.slow
@given(deciding())
@settings(max_examples=5 * settings().max_examples)
def test_no_journal_leaves_a_task_whose_batch_is_decided(seen: list[Snapshot]) -> None:
    for snapshot in seen:
        state = snapshot
        for action in plan(snapshot):
            state = apply_one(state, action)
            check_legal(snapshot, state)
        timely = replace(state, overdue=frozenset())  # draining tasks have just begun to drain
        assert [action.why for action in plan(timely)] == []


@pytest.mark.slow
@given(deciding())
@settings(max_examples=5 * settings().max_examples)
def test_planner_with_memory_holds_the_same_tasks(seen: list[Snapshot]) -> None:
    planner = Planner()
    for snapshot in seen:
        anew = Planner()
        assert planner.plan(snapshot) == anew.plan(snapshot)
        assert planner.held == anew.held
