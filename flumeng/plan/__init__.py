"""The planner: ``plan(snapshot) -> actions``, pure.

No I/O, clock, randomness or logging. Two laws hold and are tested as properties: planning again
after the actions were applied gives nothing, and every prefix of the actions leaves a legal state.
Plans come before assignments, and all that take a task away come before those that give one, so no
two nodes are ever told to run the same task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flumeng.model import FlowView, NodeView, Snapshot
from flumeng.plan import balance
from flumeng.plan.actions import Action, Assign, Drop, Replan
from flumeng.plan.placement import DRAINING, place
from flumeng.plan.seats import Load
from flumeng.store import Expected, Version
from zkschema.records import AssignedTask

__all__ = ["Action", "Assign", "Drop", "Replan", "plan"]


def plan(snapshot: Snapshot) -> list[Action]:
    """What to do now so that every flow in ``snapshot.mine`` runs as it should."""
    drops = [drop for flow in _mine(snapshot) if (drop := _drop(flow, snapshot))]
    replans = _replans(snapshot)
    planned = _after_replans(snapshot, replans)
    takes = _assigns(planned, give=False)
    gives = _assigns(_after_assigns(planned, takes), give=True)
    return [*replans, *takes, *gives, *drops]


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


def _after_replans(snapshot: Snapshot, replans: list[Replan]) -> Snapshot:
    """The snapshot as it is when the plans are written; a set raises a version by one."""
    flows = dict(snapshot.flows)
    for action in replans:
        flows[action.flow] = replace(
            flows[action.flow], plan=action.plan, plan_version=_next(action.expect)
        )
    return replace(snapshot, flows=flows)


def _next(expect: Expected) -> Version:
    return Version(expect.number + 1 if isinstance(expect, Version) else 0)


def _after_assigns(snapshot: Snapshot, assigns: list[Assign]) -> Snapshot:
    nodes = dict(snapshot.nodes)
    for action in assigns:
        nodes[action.node] = replace(
            nodes[action.node],
            assignment=action.assignment,
            assignment_version=_next(action.expect),
        )
    return replace(snapshot, nodes=nodes)


def _assigns(snapshot: Snapshot, *, give: bool) -> list[Assign]:
    """Bring assignments in line with the plans; without ``give`` no node gets a new task."""
    found = (_assign(node, snapshot, give) for node in snapshot.nodes.values())
    return [assign for assign in found if assign]


def _assign(node: NodeView, snapshot: Snapshot, give: bool) -> Assign | None:
    current = {(task.flow, task.task): task for task in node.assignment.tasks}
    tasks = {
        key: task
        for key, task in _wanted(node, snapshot, current).items()
        if give or key in current
    }
    changed = sorted(key for key in {*current, *tasks} if current.get(key) != tasks.get(key))
    if not changed and (not give or isinstance(node.assignment_version, Version)):
        return None
    return Assign(
        node.name,
        replace(node.assignment, tasks=tuple(tasks[key] for key in sorted(tasks))),
        node.assignment_version,
        _basis({flow for flow, _ in changed}, snapshot.flows),
        tuple(_difference(current.get(key), tasks.get(key)) for key in changed),
    )


def _wanted(
    node: NodeView, snapshot: Snapshot, current: Mapping[tuple[str, str], AssignedTask]
) -> dict[tuple[str, str], AssignedTask]:
    """What the plans give to the node; tasks of other masters' flows stay as they are."""
    tasks = {
        key: task
        for key, task in current.items()
        if task.flow in snapshot.flows and task.flow not in snapshot.mine
    }
    for flow in _mine(snapshot):
        for name, task in flow.plan.tasks.items():
            if task.node == node.name:
                tasks[flow.name, name] = AssignedTask(
                    flow=flow.name,
                    task=name,
                    kind=task.kind,
                    epoch=task.epoch,
                    revision=flow.record.revision,
                    state=DRAINING if task.state == DRAINING else "running",
                    partitions=task.partitions,
                )
    return tasks


def _basis(names: set[str], flows: Mapping[str, FlowView]) -> tuple[tuple[str, Version], ...]:
    versions = ((name, flows[name].plan_version) for name in sorted(names) if name in flows)
    return tuple((name, found) for name, found in versions if isinstance(found, Version))


def _difference(before: AssignedTask | None, after: AssignedTask | None) -> str:
    if before is None:
        assert after is not None
        return f"{after.flow}/{after.task} starts under epoch {after.epoch}"
    if after is None:
        return f"{before.flow}/{before.task} ends"
    return f"{after.flow}/{after.task} changes"
