"""What each node is told: the projection of all plans onto the nodes.

All that take a task away come before those that give one, so no two nodes are ever told to run the
same task, also when two nodes exchange tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from flumeng.model import FlowView, NodeView, Snapshot
from flumeng.plan.actions import Assign
from flumeng.plan.placement import DRAINING
from flumeng.store import Version
from zkschema.records import AssignedTask, PlannedTask

Key = tuple[str, str]
Tasks = Mapping[Key, AssignedTask]


def assign(snapshot: Snapshot) -> list[Assign]:
    """Bring every assignment in line with the plans in ``snapshot``."""
    takes, gives = [], []
    for node, given in _given(snapshot).items():
        view = snapshot.nodes[node]
        current = {(task.flow, task.task): task for task in view.assignment.tasks}
        wanted = {**_of_other_masters(current, snapshot), **given}
        if wanted == current and isinstance(view.assignment_version, Version):
            continue
        kept = {key: task for key, task in wanted.items() if key in current}
        if kept != current:
            takes.append(_action(view, current, kept, snapshot))
            view = replace(
                view,
                assignment=takes[-1].assignment,
                assignment_version=takes[-1].version_after,
            )
        if wanted != kept or not isinstance(view.assignment_version, Version):
            gives.append(_action(view, kept, wanted, snapshot))
    return [*takes, *gives]


def _given(snapshot: Snapshot) -> dict[str, dict[Key, AssignedTask]]:
    """What the plans of this master's flows give to each node."""
    given: dict[str, dict[Key, AssignedTask]] = {name: {} for name in snapshot.nodes}
    assigned = {
        (task.flow, task.task, node.name): task
        for node in snapshot.nodes.values()
        for task in node.assignment.tasks
    }
    for name in snapshot.mine:
        flow = snapshot.flows[name]
        for task_name, task in flow.plan.tasks.items():
            if task.node in given:
                known = assigned.get((name, task_name, task.node))
                given[task.node][name, task_name] = _assigned(flow, task_name, task, known)
    return given


def _assigned(
    flow: FlowView, name: str, task: PlannedTask, known: AssignedTask | None
) -> AssignedTask:
    """The task as its node is told of it: ``known`` itself when that says the same already."""
    revision = flow.record.revision
    state = DRAINING if task.state == DRAINING else "running"
    if (
        known is not None
        and known.epoch == task.epoch
        and known.revision == revision
        and known.state == state
        and known.partitions == task.partitions
    ):
        return known
    return AssignedTask(
        flow=flow.name,
        task=name,
        kind=task.kind,
        epoch=task.epoch,
        revision=revision,
        state=state,
        partitions=task.partitions,
    )


def _of_other_masters(current: Tasks, snapshot: Snapshot) -> dict[Key, AssignedTask]:
    return {
        key: task
        for key, task in current.items()
        if task.flow in snapshot.flows and task.flow not in snapshot.mine
    }


def _action(node: NodeView, before: Tasks, after: Tasks, snapshot: Snapshot) -> Assign:
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    return Assign(
        node.name,
        replace(node.assignment, tasks=tuple(after[key] for key in sorted(after))),
        node.assignment_version,
        _basis({flow for flow, _ in changed}, snapshot),
        tuple(_difference(before.get(key), after.get(key)) for key in changed),
    )


def _basis(flows: Iterable[str], snapshot: Snapshot) -> tuple[tuple[str, Version], ...]:
    """The versions of the plans that a change derives from; a flow that is gone has none."""
    known = ((name, snapshot.flows[name]) for name in sorted(flows) if name in snapshot.flows)
    return tuple(
        (name, flow.plan_version) for name, flow in known if isinstance(flow.plan_version, Version)
    )


def _difference(before: AssignedTask | None, after: AssignedTask | None) -> str:
    if before is None:
        assert after is not None
        return f"{after.flow}/{after.task} starts under epoch {after.epoch}"
    if after is None:
        return f"{before.flow}/{before.task} ends"
    return f"{after.flow}/{after.task} changes"
