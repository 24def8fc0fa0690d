"""The planner: ``plan(snapshot) -> actions``, pure.

No I/O, clock, randomness or logging. Two laws hold and are tested as properties: planning again
after the actions were applied gives nothing, and every prefix of the actions leaves a legal state.
Plans come before the assignments that derive from them.
"""

from __future__ import annotations

from dataclasses import replace

from flumeng.model import FlowView, Snapshot
from flumeng.plan import balance
from flumeng.plan.actions import Action, Assign, Drop, Replan
from flumeng.plan.assigning import assign
from flumeng.plan.placement import place
from flumeng.plan.seats import Load
from flumeng.store import Version

__all__ = ["Action", "Assign", "Drop", "Replan", "plan"]


def plan(snapshot: Snapshot) -> list[Action]:
    """What to do now so that every flow in ``snapshot.mine`` runs as it should."""
    drops = [drop for flow in _mine(snapshot) if (drop := _drop(flow, snapshot))]
    replans = _replans(snapshot)
    return [*replans, *assign(_after(snapshot, replans)), *drops]


def _mine(snapshot: Snapshot) -> list[FlowView]:
    return [flow for name, flow in snapshot.flows.items() if name in snapshot.mine]


def _drop(flow: FlowView, snapshot: Snapshot) -> Drop | None:
    if flow.record.state != "deleted" or flow.plan.tasks:
        return None
    waiting = [
        name
        for name, journal in snapshot.journals.items()
        if journal.flow == flow.name and name not in snapshot.drained
    ]
    busy = any(
        key.startswith(f"{flow.name}/")
        for node in snapshot.nodes.values()
        if node.live and node.status
        for key in node.status.tasks
    )
    unfinished = waiting or flow.name in snapshot.committing
    if busy or (unfinished and not flow.record.discard):
        return None
    return Drop(flow.name, (f"{flow.name} was deleted and is drained",))


def _replans(snapshot: Snapshot) -> list[Replan]:
    load = Load(snapshot.flows.values())
    after = dict(snapshot.flows)
    reasons: dict[str, list[str]] = {}
    for flow in _mine(snapshot):
        wanted, reasons[flow.name] = place(flow, snapshot, load)
        after[flow.name] = replace(flow, plan=wanted)
    most = balance.allowance(snapshot, after.values())
    for name in reasons:
        moved, why = balance.move(after[name], snapshot, load, most)
        most -= len(moved)
        reasons[name] += why
        tasks = {**after[name].plan.tasks, **moved}
        after[name] = replace(after[name], plan=replace(after[name].plan, tasks=tasks))
    return [
        Replan(
            flow.name,
            flow.version,
            after[flow.name].plan,
            flow.plan_version,
            tuple(reasons[flow.name]) or (f"{flow.name}: the plan is brought up to date",),
        )
        for flow in _mine(snapshot)
        if after[flow.name].plan != flow.plan or not isinstance(flow.plan_version, Version)
    ]


def _after(snapshot: Snapshot, replans: list[Replan]) -> Snapshot:
    """The snapshot as it is when the plans are written."""
    flows = dict(snapshot.flows)
    for action in replans:
        flows[action.flow] = replace(
            flows[action.flow], plan=action.plan, plan_version=action.version_after
        )
    return replace(snapshot, flows=flows)
