"""The planner at the end of a flow, and the chokes and handoffs in assignments."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from flumeng.control.planner.actions import Assign
from flumeng.control.planner.capacity_index import CapacityIndex
from flumeng.control.planner.planner import plan
from flumeng.control.snapshot.snapshot import NodeView, Snapshot
from flumeng.control.zookeeper import Version
from tests.unit.control.planning import SLOT, at_rest, carried_out, cluster, flow, node, obeyed
from zkschema.records import COLLECT, INGEST, Assignment, Cluster, Flow, Node


def test_a_deleted_flow_waits_for_a_node_that_may_hold_events_of_it() -> None:
    roles = (INGEST, COLLECT)
    settled = at_rest(cluster([flow()], [node("a", roles=roles), node("b", roles=roles)]))

    def deleted(*, discard: bool) -> Snapshot:
        record = Flow(revision=1, state="deleted", discard=discard)
        view = replace(settled.flows["f"], record=record, version=Version(1))
        away = replace(settled.nodes["a"], live=False, status=None)
        nodes = {"a": away, "b": settled.nodes["b"]}
        state = replace(settled, flows={"f": view}, nodes=nodes)
        for _ in range(5):
            state = obeyed(carried_out(state))
        return state

    waiting = deleted(discard=False)
    assert list(waiting.flows) == ["f"], "it was never heard of the end of its sources"
    back = replace(waiting.nodes["a"], live=True)
    state = obeyed(replace(waiting, nodes={**waiting.nodes, "a": back}))
    assert not carried_out(state).flows
    assert not deleted(discard=True).flows


# -- chokes


def test_chokes_reach_the_nodes_that_run_the_flow() -> None:
    limits = Cluster(chokes={"f": 1000.0, "f@b": 50.0, "other": 1.0})
    settled = at_rest(cluster([flow(tasks=2)], [node("a"), node("b"), node("c")], cluster=limits))
    chokes = {name: dict(view.assignment.chokes) for name, view in settled.nodes.items()}
    assert chokes == {"a": {"f": 1000.0}, "b": {"f": 50.0}, "c": {}}
    off = carried_out(replace(settled, cluster=Cluster()))
    assert {name: dict(view.assignment.chokes) for name, view in off.nodes.items()} == {
        "a": {},
        "b": {},
        "c": {},
    }


# -- handoffs


def test_handoff_is_assigned_to_the_collect_tasks_of_its_flow_only() -> None:
    settled = at_rest(cluster([flow(tasks=2), flow("other")], [node("a"), node("b")]))
    asked = settled.flows["f"]
    view = replace(asked, record=replace(asked.record, handoff=7))
    told = carried_out(replace(settled, flows={**settled.flows, "f": view}))
    before = {(t.flow, t.task): t for n in settled.nodes.values() for t in n.assignment.tasks}
    for name, after in told.nodes.items():
        for one in after.assignment.tasks:
            handoff = 7 if (one.flow, one.kind) == ("f", COLLECT) else 0
            assert one == replace(before[one.flow, one.task], handoff=handoff), name
    assert {flow.plan_version for flow in told.flows.values()} == {
        flow.plan_version for flow in settled.flows.values()
    }


def test_node_gets_the_spark_settings_that_hold_for_it() -> None:
    nodes = {name: NodeView(name, Node(uuid=name, roles=("collect",)), live=True) for name in "ab"}
    nodes["b"] = replace(nodes["b"], record=replace(nodes["b"].record, spark={"cores": "3"}))
    cluster = Cluster(spark={"master": "spark://m:7077", "cores": "8"})
    before = Snapshot({}, nodes, {}, frozenset(), frozenset(), cluster=cluster, leads=True)
    told = {a.node: a.assignment.spark for a in plan(before) if isinstance(a, Assign)}
    assert told == {
        "a": {"master": "spark://m:7077", "cores": "8"},
        "b": {"master": "spark://m:7077", "cores": "3"},
    }


def test_tasks_are_placed_by_the_cores_of_a_spark_cluster() -> None:
    large, small = node("large"), node("small")
    told = {"master": "spark://m:7077", "cores": "6"}
    large = replace(large, assignment=Assignment(spark=told))
    small = replace(small, assignment=Assignment(spark={**told, "cores": "2"}))
    index = CapacityIndex()
    index.put_node("large", large)
    index.put_node("small", small)
    pool = index.pool({})
    placed = Counter[str]()
    for _ in range(40):
        name = index.least_full(pool, SLOT)
        assert name is not None
        index.add(name, SLOT)
        placed[name] += 1
    assert placed == {"large": 30, "small": 10}
    assert index.in_turn(pool, SLOT, 2) is None
    assert node("a").spark_cores == 0
    local = replace(large, assignment=Assignment(spark={"cores": "6"}))
    assert local.spark_cores == 0
