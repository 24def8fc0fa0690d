"""The planner's two laws, over random clusters: planning again after applying gives nothing, and
every prefix of the actions leaves a legal state."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.config import CollectPlace, Place, Rollout
from flumeng.control.planner.actions import together
from flumeng.control.planner.planner import plan
from flumeng.control.planner.replicas import is_down
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from flumeng.journal.replication.membership import node_of
from tests.props.planning import (
    BOTH,
    FLOW_LABELS,
    NODE_LABELS,
    RANGE,
    apply_all,
    apply_one,
    check_legal,
    converge,
    snapshots,
)
from zkschema.records import COLLECT, REPLICA, Flow, Journal, Node


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_planning_again_after_applying_gives_nothing(snapshot: Snapshot) -> None:
    settled = apply_all(snapshot)
    for _ in settled.nodes:  # a task that leaves a node makes room for another in the next plan
        if snapshot.cluster.throttles or _departs(snapshot, settled):
            snapshot, settled = settled, apply_all(settled)
    assert [action.why for action in plan(settled)] == []


def _departs(before: Snapshot, after: Snapshot) -> bool:
    """Whether a plan takes a task from a node."""
    return any(
        task.state == "draining" or task.node != was.node
        for name, view in after.flows.items()
        for key, task in view.tasks.items()
        if (was := before.flows[name].tasks.find(key)) and was.node
    )


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_every_prefix_of_the_actions_is_legal(snapshot: Snapshot) -> None:
    state = snapshot
    for action in plan(snapshot):
        state = apply_one(state, action)
        check_legal(snapshot, state)


@st.composite
def ending_rollouts(draw: st.DrawFn) -> Snapshot:
    """All tasks of a flow have proven a revision with another place, when its journals and the
    nodes change."""

    def some_journals() -> dict[str, Journal]:
        journal = Journal(flow="f", node="n", primary="n", term=1, in_sync=())
        return {f"j{n}": journal for n in range(draw(st.sampled_from([0, 5, 40, 100])))}

    number = st.sampled_from([None, None, None, 3, RANGE])
    old, new = (
        Place(collect=CollectPlace(labels=draw(FLOW_LABELS), tasks=draw(number))) for _ in range(2)
    )
    view = FlowView("f", Flow(revision=1), Version(0), old)
    views = {
        name: NodeView(name, Node(uuid=name, roles=BOTH, labels=draw(NODE_LABELS)), live=True)
        for name in (f"n{number}" for number in range(6))
    }
    fresh = Snapshot({"f": view}, views, some_journals(), frozenset(), frozenset({"f"}))
    before = apply_all(fresh)
    view = before.flows["f"]
    tasks = {name: replace(task, revision=2) for name, task in view.tasks.items()}
    view = replace(
        view,
        record=Flow(revision=2),
        place=new,
        rollout=Rollout(),
        plan=replace(view.plan, tasks=tasks),
    )
    return replace(
        before,
        flows={"f": view},
        nodes={name: one for name, one in before.nodes.items() if draw(st.integers(0, 4))},
        journals=some_journals(),
        settled=frozenset(f"f/{name}" for name in tasks),
    )


@given(ending_rollouts())
@settings(max_examples=3 * settings().max_examples)
def test_rollout_ends_legally_and_completely(snapshot: Snapshot) -> None:
    state = snapshot
    for action in plan(snapshot):
        state = apply_one(state, action)
        check_legal(snapshot, state)
    flow = state.flows["f"]
    read = {name for task in flow.tasks.values() for name in task.partitions}
    assert flow.plan.revision == 1 or read == state.journals.keys()


@pytest.mark.slow
@given(snapshots(), st.randoms(use_true_random=False))
@settings(max_examples=3 * settings().max_examples)
def test_every_part_of_a_group_of_concurrent_actions_is_legal(
    snapshot: Snapshot, random: Random
) -> None:
    state = snapshot
    for group in together(plan(snapshot)):
        done = [action for action in group if random.random() < 0.7]
        partly = state
        for action in random.sample(done, len(done)):
            partly = apply_one(partly, action)
            check_legal(snapshot, partly)
        for action in group:
            state = apply_one(state, action)


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_every_open_partition_is_read_if_possible(snapshot: Snapshot) -> None:
    settled = apply_all(snapshot)
    for flow in settled.flows.values():
        ends = flow.record.state in ("stopped", "deleted")
        if flow.name not in settled.mine or flow.record.state == "suspended":
            continue
        if ends and (flow.record.discard or not settled.has_undelivered(flow.name)):
            continue
        if flow.by_batch and flow.name not in settled.intents and not flow.tasks:
            continue
        read = {name for task in flow.plan.tasks.values() for name in task.partitions}
        assert read >= set(settled.open_of(flow.name))


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=2 * settings().max_examples)
def test_a_flow_of_another_master_is_left_alone(snapshot: Snapshot) -> None:
    settled = apply_all(snapshot)
    for name in set(snapshot.flows) - snapshot.mine:
        assert settled.flows[name] == snapshot.flows[name]


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_every_task_has_as_many_standbys_as_there_are_nodes_for_them(snapshot: Snapshot) -> None:
    """Of flows that are under way; in another zone as long as one has a node for it."""
    settled = apply_all(replace(snapshot, flows=without_rollouts(snapshot)))
    for flow in (settled.flows[name] for name in settled.mine & settled.flows.keys()):
        assert flow.place is not None
        place = flow.place.collect
        for task in flow.tasks.values():
            may = {
                name: node.record.zone
                for name, node in settled.nodes.items()
                if node.live and node.eligible(COLLECT, place.labels) and name != task.node
            }
            kept = {name for name in task.standbys if not settled.nodes[name].live}
            assert all(settled.nodes[name].down is False for name in kept)
            wanted = place.replicas - 1 if task.kind == COLLECT and task.node else 0
            assert len(task.standbys) >= min(wanted, len(may))
            assert len(task.standbys) <= wanted
            assert may.keys() | kept >= set(task.standbys)
            owner = settled.nodes.get(task.node or "")
            zone = owner.record.zone if owner else ""
            apart = {name for name, other in may.items() if other != zone}
            near = [name for name in task.standbys if settled.nodes[name].record.zone == zone]
            assert not near or apart <= set(task.standbys)


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_every_journal_has_as_many_replicas_as_there_are_nodes_for_them(snapshot: Snapshot) -> None:
    settled = apply_all(snapshot)
    for name in settled.journal_versions:
        journal, flow = settled.journals[name], settled.flows.get(settled.journals[name].flow)
        primary = settled.nodes.get(journal.primary)
        if flow is None or flow.name not in settled.mine or journal.gone:
            continue
        in_sync = {node_of(replica) for replica in journal.in_sync}
        if is_down(primary):
            assert not any(settled.nodes[n].live for n in in_sync & settled.nodes.keys())
        elif primary and primary.live and not journal.closed and flow.replicas is not None:
            may = {
                node.name
                for node in settled.nodes.values()
                if node.live and node.eligible(REPLICA, {})
            }
            assert len(journal.replicas) >= flow.replicas.copies or may <= set(journal.replicas)


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=2 * settings().max_examples)
def test_every_assignment_has_the_record_versions_of_its_nodes_journals(snapshot: Snapshot) -> None:
    settled = apply_all(snapshot)
    for node in settled.nodes.values():
        for name, version in settled.journal_versions.items():
            journal = settled.journals[name]
            if journal.flow in settled.mine and not node.set_aside:
                concerned = node.name in (journal.node, journal.primary, *journal.replicas)
                known = node.assignment.journals.get(name)
                assert known == (version.number if concerned else None)


def without_rollouts(snapshot: Snapshot) -> dict[str, FlowView]:
    return {name: replace(flow, rollout=None) for name, flow in snapshot.flows.items()}


@given(snapshots())
def test_every_cluster_comes_to_rest(snapshot: Snapshot) -> None:
    everything = replace(snapshot, mine=frozenset(snapshot.flows), drained=frozenset())
    settled, _ = converge(everything)
    assert plan(settled) == []
