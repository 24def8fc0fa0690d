"""Restarts and moves of single tasks: pure decisions, written as a compare-and-set on the plan."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from flumeng.control.commands.lookup import require_node
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import refuse_in_maintenance
from flumeng.control.planner.capacity_index import CapacityIndex
from flumeng.control.planner.task_outcomes import STOPPED, ended, history
from flumeng.control.snapshot.reader import Reader
from flumeng.control.snapshot.snapshot import FlowView, IntentView, Snapshot
from flumeng.control.snapshot.task_map import Tasks, leaving, plan_writes
from flumeng.control.zookeeper import Check, ReadableStore, tree
from flumeng.platform.errors import ConflictError, UnknownNameError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths
from zkschema.records import COLLECT, INGEST, PlannedTask


@dataclass(frozen=True)
class TaskChange:
    """A task and the plan's ``epoch`` after the change."""

    flow: str
    task: str
    after: PlannedTask
    epoch: int

    @property
    def key(self) -> str:
        return f"{self.flow}/{self.task}"

    @property
    def restarted(self) -> dict[str, str | int | None]:
        """The JSON of `task restart`."""
        return {"task": self.key, "node": self.after.node, "epoch": self.after.epoch}

    def applied(self, snapshot: Snapshot) -> Snapshot:
        view = snapshot.flows[self.flow]
        tasks = Tasks.of(view.plan.tasks).changed({self.task: self.after})
        changed = replace(view, plan=replace(view.plan, tasks=tasks, epoch=self.epoch))
        return replace(snapshot, flows={**snapshot.flows, self.flow: changed})


def plannable_snapshot(store: ReadableStore) -> Snapshot:
    """Return the cluster as seen by a master of all flows, as if every batch were finished."""
    tree.require(store)
    snapshot = Reader(store, "operator", time.monotonic, time.time).snapshot()
    nothing_decided: dict[str, dict[str, IntentView]] = {
        name: {} for name, flow in snapshot.flows.items() if flow.by_batch
    }
    return replace(snapshot, mine=snapshot.plannable, intents=nothing_decided)


def restart_task(operator: Operator, key: str) -> TaskChange:
    """Restart the task ``flow/task`` on its node under a higher epoch. Raises as ``restarted``."""
    snapshot = plannable_snapshot(operator.store)
    change = restarted(snapshot, key, operator.reason)
    _carry_out(operator, snapshot, change, f"task restart {key}")
    return change


def move_task(operator: Operator, key: str, node: str) -> TaskChange | None:
    """Move a task as ``moved``, once its owner releases it; raises ConflictError in maintenance."""
    store = operator.store
    require_node(store, node)
    snapshot = plannable_snapshot(store)
    change = moved(snapshot, key, node, operator.reason)
    refuse_in_maintenance(store)
    if change is not None:
        _carry_out(operator, snapshot, change, f"task move {key} {node}")
    return change


def restarted(snapshot: Snapshot, key: str, reason: str = "") -> TaskChange:
    """Return the task with a higher epoch. Raises ``UserError`` for an unknown task,
    ``ConflictError`` for one that does not run."""
    flow, name, task = require_planned(snapshot, key)
    if task.node is None:
        raise ConflictError(f"task {key} waits for a node: there is nothing to restart")
    if task.state == "draining":
        raise ConflictError(f"task {key} drains: it starts again on its next node")
    owner = snapshot.nodes.get(task.node)
    if owner is None or not owner.live:
        raise ConflictError(f"node {task.node} is not live: there is nothing to restart")
    epoch = flow.plan.epoch + 1
    after = replace(task, epoch=epoch, why=_because("restarted by an operator", reason))
    return TaskChange(flow.name, name, after, epoch)


def moved(snapshot: Snapshot, key: str, node: str, reason: str = "") -> TaskChange | None:
    """Return the task, draining towards ``node``; None when it is there or already moving there.
    Raises ``UserError`` for an unknown or pinned task or unfit node, ``ConflictError`` for a
    waiting or revoked task."""
    flow, name, task = require_planned(snapshot, key)
    if task.kind == INGEST:
        raise UserError(f"task {key} is pinned to its node, where its sources are: see `flow show`")
    if (task.target or task.node) == node:
        return None
    if task.node is None:
        raise ConflictError(f"task {key} waits: masters assign it to the first node that fits")
    if task.state == "draining" and task.target is None:
        raise ConflictError(f"task {key} is being moved from {task.node} already: {task.why}")
    refusal = _refusal(snapshot, flow, node) or _fullness(snapshot, flow, task, node)
    if refusal:
        raise UserError(f"node {node} may not run task {key}: {refusal}")
    why = _because("moved by an operator", reason)
    after = leaving(task, node, why, flow.plan.epoch + 1)
    return TaskChange(flow.name, name, after, max(flow.plan.epoch, after.mark))


def require_planned(snapshot: Snapshot, key: str) -> tuple[FlowView, str, PlannedTask]:
    """Return a task and its flow. Raises ``UserError`` with the nearest name if unknown."""
    flow, _, name = key.partition("/")
    view = snapshot.flows.get(flow)
    if view is not None and view.set_aside:
        raise view.unreadable[0].error
    task = view.plan.tasks.get(name) if view else None
    if view is None or task is None:
        keys = [f"{f.name}/{task}" for f in snapshot.flows.values() for task in f.plan.tasks]
        hint = nearest(key, keys) if keys else "nothing is planned yet"
        raise UnknownNameError(f'there is no task "{key}"; {hint}')
    return view, name, task


def _refusal(snapshot: Snapshot, flow: FlowView, node: str) -> str:
    """Return why the node may not run the flow's collect tasks now; empty when it may."""
    view = snapshot.nodes.get(node)
    if view is None:
        return "it is not registered"
    if COLLECT not in view.record.roles:
        return f"it lacks the role {COLLECT} (`flumeng node run --role {COLLECT}`)"
    if view.record.desired != "active":
        return f"it is {view.record.desired} (`flumeng node undrain {node}`)"
    if not view.live:
        return "it is not live"
    if flow.place is None:
        return f"the flow's revision {flow.record.revision} cannot be read: {flow.problem}"
    lacking = {
        label: value
        for label, value in flow.place.collect.labels.items()
        if view.record.labels.get(label) != value
    }
    if lacking:
        words = " ".join(f"{label}={value}" for label, value in lacking.items())
        return f"the flow requires labels that it lacks (`flumeng node label {node} {words}`)"
    return ""


def _fullness(snapshot: Snapshot, flow: FlowView, task: PlannedTask, node: str) -> str:
    """Return why the task exceeds the node's capacity or the flow's ``per_node``; else empty."""
    if task.kind != COLLECT:
        return ""
    view = snapshot.nodes[node]
    there = [
        (other, planned)
        for other in snapshot.flows.values()
        for planned in other.tasks.values()
        if planned.kind == COLLECT and (planned.target or planned.node) == node
    ]
    capacity = CapacityIndex()
    capacity.put_node(node, view)
    for other, planned in there:
        capacity.add(node, other.weight(planned.partitions))
    if not capacity.fits(node, flow.weight(task.partitions)):
        has = " ".join(f"{name}={amount:g}" for name, amount in view.record.capacity.items())
        return f"its capacity ({has}) is used up (`flumeng node capacity {node} ...`)"
    assert flow.place is not None
    most = flow.place.collect.per_node
    own = sum(other.name == flow.name for other, _ in there)
    return f"it has {own} tasks of the flow, which allows {most}" if 0 < most <= own else ""


def _because(action: str, reason: str) -> str:
    return f"{action}: {reason}" if reason else action


def _carry_out(operator: Operator, snapshot: Snapshot, change: TaskChange, command: str) -> None:
    view = snapshot.flows[change.flow]
    after = change.applied(snapshot).flows[change.flow].plan
    before = view.plan.tasks[change.task]
    if before.node is not None and before.epoch != change.after.epoch:
        why = change.after.why
        over = ended(change.task, before, STOPPED, why, time=operator.now)
        after = replace(after, ended=history(view.plan, [over]))
    writes = plan_writes(change.flow, after, Tasks.of(view.plan.tasks), view.plan_version)
    operator.commit([Check(paths.flow(change.flow), view.version), *writes], command)
