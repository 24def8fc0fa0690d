"""Computes the nodes' assignments from all plans. Assignments that take a task away precede those
that give one, so that no task is ever assigned to two owners, even when nodes exchange tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from flumeng.control.planner.actions import Assign
from flumeng.control.planner.placement_index import DRAINING, STANDBY, PlacementIndex
from flumeng.control.planner.replica_index import ReplicaIndex
from flumeng.control.planner.replicas import assigned_journals
from flumeng.control.snapshot.assignment_pages import assignment_steps, items
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from zkschema.records import COLLECT, NOTHING, AssignedTask, Assignment, PlannedTask

ITEM_BYTES = 1000
"""Upper bound of a task or partition in a transaction, with the check of its flow's plan."""
NAMED = 5
"""So many task changes of a node are reported each; of any others only the number."""

Key = tuple[str, str]
Tasks = Mapping[Key, AssignedTask]


def assign(
    snapshot: Snapshot, index: PlacementIndex, nodes: Iterable[str], replicas: ReplicaIndex
) -> list[Assign]:
    takes: list[Assign] = []
    gives: list[Assign] = []
    for node in nodes:
        view = snapshot.nodes.get(node)
        if view is None or view.set_aside:
            continue
        current = {(task.flow, task.task): task for task in view.assignment.tasks}
        planned = _planned(view, current, snapshot, index)
        target = replace(
            view.assignment,
            chokes=_chokes(view, planned, snapshot),
            spark={**snapshot.cluster.spark, **view.record.spark}
            if snapshot.cluster_known
            else view.assignment.spark,
            journals=assigned_journals(view, replicas.journals_of.get(node, {}), snapshot),
        )
        if target != view.assignment:
            view = replace(view, assignment=target)
        elif planned == current and isinstance(view.assignment_version, Version):
            continue
        kept = _kept(current, planned) if current else {}
        if kept != current:
            takes += _steps(view, current, kept, snapshot, gives=False)
            view = replace(
                view, assignment=takes[-1].assignment, assignment_version=takes[-1].version_after
            )
            if planned == kept:
                continue
        gives += _steps(view, kept, planned, snapshot, gives=True)
    return [*takes, *gives]


def _planned(
    view: NodeView, current: Tasks, snapshot: Snapshot, index: PlacementIndex
) -> dict[Key, AssignedTask]:
    """Return the node's planned tasks; tasks of flows that other masters plan stay unchanged."""
    planned = {
        key: task
        for key, task in current.items()
        if task.flow in snapshot.flows and task.flow not in snapshot.mine
    }
    mine, flows = snapshot.mine, snapshot.flows
    for key, task in index.standing_by(view.name).items():
        flow, name = key
        if flow in mine:
            planned[key] = _assigned(flows[flow], name, task, current.get(key), standby=True)
    for key, task in index.of_node(view.name).items():
        flow, name = key
        if flow in mine:
            planned[key] = _assigned(flows[flow], name, task, current.get(key))
    return planned


def _kept(current: Tasks, planned: Tasks) -> dict[Key, AssignedTask]:
    """Return the updated tasks that stay on the node; a standby is not made an owner yet."""
    return {
        key: before if before.state == STANDBY != task.state else task
        for key, task in planned.items()
        if (before := current.get(key)) is not None
    }


def _assigned(
    flow: FlowView,
    name: str,
    task: PlannedTask,
    before: AssignedTask | None,
    *,
    standby: bool = False,
) -> AssignedTask:
    """Return the assigned task; ``before`` itself when nothing changes."""
    revision = flow.revision_of(task) if flow.rolling else flow.record.revision
    state, epoch = (DRAINING if task.state == DRAINING else "running"), task.epoch
    handoff = flow.record.handoff if task.kind == COLLECT else 0
    if standby:
        state, epoch, handoff = STANDBY, 0, 0
    if (
        before is not None
        and before.epoch == epoch
        and before.revision == revision
        and before.state == state
        and before.partitions == task.partitions
        and before.handoff == handoff
    ):
        return before
    return AssignedTask(
        extra=NOTHING,
        flow=flow.name,
        task=name,
        kind=task.kind,
        epoch=epoch,
        revision=revision,
        state=state,
        partitions=task.partitions,
        handoff=handoff,
    )


def _chokes(view: NodeView, planned: Tasks, snapshot: Snapshot) -> Mapping[str, float]:
    """Return the bytes per second by flow: the limit for this node, else for all nodes."""
    if not snapshot.cluster_known:
        return view.assignment.chokes
    node, limits = view.name, snapshot.cluster.chokes
    if not limits:
        return {}
    flows = sorted({flow for flow, _ in planned})
    rates = {flow: limits.get(f"{flow}@{node}", limits.get(flow)) for flow in flows}
    return {flow: rate for flow, rate in rates.items() if rate is not None}


def _steps(
    node: NodeView, before: Tasks, after: Tasks, snapshot: Snapshot, *, gives: bool
) -> Iterator[Assign]:
    keys = sorted(before.keys() | after.keys()) if before else sorted(after)
    changed = [key for key in keys if before.get(key) is not after.get(key)] if before else keys
    why = _reasons(node.name, before, after, changed)
    target = replace(node.assignment, tasks=tuple(after[key] for key in keys if key in after))
    expect = node.assignment_version

    def action(old: Assignment, new: Assignment) -> Assign:
        whole = old is node.assignment and new is target
        flows = {flow for flow, _ in changed} if whole else _flows_changed(old, new)
        basis = _basis(flows, snapshot)
        return Assign(node.name, new, old, expect, basis, gives, why)

    def fits(old: Assignment, new: Assignment) -> bool:
        small = (items(old.tasks) + items(new.tasks)) * ITEM_BYTES < snapshot.scale.limit_bytes
        return small or snapshot.scale.fits(action(old, new).writes())

    current = node.assignment
    for step in assignment_steps(current, target, fits):
        yield (done := action(current, step))
        current, expect = step, done.version_after
        why = (f"node {node.name}: the next part of its assignment",)


def _flows_changed(before: Assignment, after: Assignment) -> set[str]:
    old = {(task.flow, task.task): task for task in before.tasks}
    new = {(task.flow, task.task): task for task in after.tasks}
    return {key[0] for key in old.keys() | new.keys() if old.get(key) is not new.get(key)}


def _basis(flows: Iterable[str], snapshot: Snapshot) -> tuple[tuple[str, Version], ...]:
    """Return the plan versions from which a change derives; none for a removed flow."""
    views = (snapshot.flows[name] for name in sorted(flows) if name in snapshot.flows)
    return tuple(
        (flow.name, flow.plan_version) for flow in views if isinstance(flow.plan_version, Version)
    )


def _reasons(node: str, before: Tasks, after: Tasks, changed: Sequence[Key]) -> tuple[str, ...]:
    if not changed:
        return (f"node {node}: its assignment is updated",)
    named = [_difference(before.get(key), after.get(key)) for key in changed[:NAMED]]
    more = len(changed) - NAMED
    return (*named, f"node {node}: {more} more tasks change") if more > 0 else tuple(named)


def _difference(before: AssignedTask | None, after: AssignedTask | None) -> str:
    if before is None:
        assert after is not None
        if after.state == STANDBY:
            return f"task {after.flow}/{after.task} stands by"
        return f"task {after.flow}/{after.task} starts under epoch {after.epoch}"
    if after is None:
        return f"task {before.flow}/{before.task} ends"
    return f"task {after.flow}/{after.task} changes"
