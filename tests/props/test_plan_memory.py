"""A planner that remembers plans from the differences, and decides as one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.snapshot import Snapshot
from tests.props.planning import apply_one, discovered, flows, intents, nodes, nodes_obey, snapshots
from zkschema.records import Maintenance


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """Successive snapshots of one master: changes of every kind, and its own and others' writes."""
    seen = [draw(snapshots())]
    for _ in range(draw(st.integers(1, 6))):
        seen.append(draw(changed(seen[-1])))
    return seen


@st.composite
def changed(draw: st.DrawFn, before: Snapshot) -> Snapshot:
    """The snapshot after one more change."""
    what = draw(
        st.sampled_from(
            [
                *("obey", "write", "write some", "node", "node", "flow", "journals", "mine"),
                *("cluster", "intents", "intents", "discovery", "discovery"),
            ]
        )
    )
    if what == "intents":
        return replace(before, intents=draw(intents(before.flows)))
    if what == "obey":
        obeyed = nodes_obey(before)
        running = [k for n in obeyed.nodes.values() if n.status for k in n.status.tasks]
        return replace(obeyed, settled=frozenset(k for k in running if draw(st.booleans())))
    if what in ("write", "write some"):
        actions = plan(before)
        number = len(actions) if what == "write" else draw(st.integers(0, len(actions)))
        for action in actions[:number]:
            before = apply_one(before, action)
        return before
    if what == "node":
        later = draw(nodes())
        name = draw(st.sampled_from(sorted(later)))
        old = before.nodes.get(name)
        new = later[name]
        if old is not None:
            new = replace(
                new,
                assignment=old.assignment,
                assignment_version=old.assignment_version,
                status=old.status,
            )
        return replace(before, nodes={**before.nodes, name: new})
    if what == "flow" and before.flows:
        name = draw(st.sampled_from(sorted(before.flows)))
        new_flow = next(iter(draw(flows()).values()))
        flow = replace(
            before.flows[name],
            record=new_flow.record,
            place=new_flow.place,
            rollout=new_flow.rollout,
            by_batch=new_flow.by_batch,
            pins=new_flow.pins,
            discovers=new_flow.discovers or bool(before.flows[name].partitions),
        )
        return replace(before, flows={**before.flows, name: flow})
    if what == "journals":
        fresh = draw(snapshots())
        known = {n: j for n, j in fresh.journals.items() if j.flow in before.flows}
        others = {name for name in before.drained if "/" in name}
        return replace(
            before,
            journals=known,
            journal_versions={n: v for n, v in fresh.journal_versions.items() if n in known},
            drained=fresh.drained & known.keys() | others,
        )
    if what == "discovery" and before.flows:
        name = draw(st.sampled_from(sorted(before.flows)))
        flow = draw(discovered(before.flows[name]))
        gone = {f"{name}/{p}" for p in before.flows[name].ending}
        drained = {f"{name}/{p}" for p in flow.ending if draw(st.booleans())}
        flows_now = {**before.flows, name: flow}
        return replace(before, flows=flows_now, drained=before.drained - gone | drained)
    if what == "mine":
        mine = [name for name in before.flows if draw(st.booleans())]
        return replace(before, mine=frozenset(mine))
    if what == "cluster":
        maintenance = draw(st.sampled_from([None, Maintenance(who="a", why="b", since=0.0)]))
        chokes = draw(st.sampled_from([{}, {"f0": 1000.0}, {"f0@n1": 5.0}]))
        throttles = draw(st.sampled_from([{}, {"recovery": 0}, {"recovery": 2}]))
        cluster = replace(
            before.cluster, maintenance=maintenance, chokes=chokes, throttles=throttles
        )
        return replace(before, cluster=cluster, balance_moves=draw(st.integers(0, 3)))
    return before


@pytest.mark.slow
@given(histories())
@settings(max_examples=4 * settings().max_examples)
def test_planner_with_memory_decides_as_one_without(seen: list[Snapshot]) -> None:
    planner = Planner()
    for snapshot in seen:
        anew = Planner()
        assert planner.plan(snapshot) == anew.plan(snapshot)
        assert planner.held == anew.held
