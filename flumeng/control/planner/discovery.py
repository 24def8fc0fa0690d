"""Places a flow's discovery task on a node that may run its collect tasks; the task stays there
while that holds. A new owner gets a higher epoch at once, without a handoff: writes under a lower
epoch are refused. The task uses no capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flumeng.config.flow_names import is_part
from flumeng.control.planner.placement_index import ASSIGNED, DRAINING, WAITING
from flumeng.control.planner.plan_builder import PlanBuilder
from flumeng.control.snapshot.rendezvous import chosen
from zkschema.records import COLLECT, DISCOVER, PlannedTask

Labels = Mapping[str, str]
NAME = f"{DISCOVER}.0"
ALONE = "no other node may run it"
NOWHERE = "no live node may run it"


def place_discovery(builder: PlanBuilder) -> None:
    flow = builder.flow
    if not _is_needed(builder):
        end_discovery(builder)
        return
    task = builder.task(NAME)
    planned = _planned(builder, flow.collect_place.labels, task)
    if planned != task:
        builder.put(NAME, planned)


def _is_needed(builder: PlanBuilder) -> bool:
    """Return whether discovery runs: also for a stopped flow with open partitions and an ending
    isolated part, to find the ends of their partitions."""
    flow, snapshot = builder.flow, builder.snapshot
    waits = flow.record.state == "stopped" and len(flow.ending) < len(flow.partitions)
    ends = is_part(flow.name) and not flow.record.discard and snapshot.has_undelivered(flow.name)
    return flow.discovers and (builder.receives or waits or ends)


def end_discovery(builder: PlanBuilder) -> None:
    if builder.task(NAME) is not None:
        builder.end(NAME)


def _planned(builder: PlanBuilder, labels: Labels, task: PlannedTask | None) -> PlannedTask:
    reason = _must_leave(builder, labels, task)
    if task is not None and not reason:
        return _kept(builder, labels, task)
    node = _choose(builder, labels, task)
    if node is not None:
        return builder.assigned(DISCOVER, NAME, node, reason)
    if task is None or task.node is None:
        if task is None:
            builder.why.append(f"task {builder.flow.name}/{NAME} waits: {NOWHERE}")
        return PlannedTask(kind=DISCOVER, node=None, epoch=0, state=WAITING, why=NOWHERE)
    owner = builder.snapshot.nodes.get(task.node)
    alone = owner is not None and owner.live
    return replace(task, state=ASSIGNED, target=None, why=ALONE) if alone else task


def _kept(builder: PlanBuilder, labels: Labels, task: PlannedTask) -> PlannedTask:
    kept = builder.renewed(NAME, task)
    owner = builder.snapshot.nodes[task.node or ""]
    if not owner.eligible(COLLECT, labels) or builder.snapshot.cluster.maintenance:
        return kept
    at_rest = kept.state == ASSIGNED and kept.why != ALONE
    return kept if at_rest else replace(kept, state=ASSIGNED, target=None, why="")


def _must_leave(builder: PlanBuilder, labels: Labels, task: PlannedTask | None) -> str:
    """Return why the task needs another owner; empty when it stays."""
    if task is None or task.node is None:
        return "no node runs it"
    owner = builder.snapshot.nodes.get(task.node)
    if owner is None:
        return f"node {task.node} is no longer registered"
    if owner.set_aside or builder.snapshot.cluster.maintenance:
        return ""
    if not owner.live:
        return f"node {owner.name} is down" if owner.down else ""
    if task.state == DRAINING and task.target in builder.index.capacity.pool(labels).ranks:
        return task.why
    return "" if owner.eligible(COLLECT, labels) else f"node {owner.name} may no longer run it"


def _choose(builder: PlanBuilder, labels: Labels, task: PlannedTask | None) -> str | None:
    """Return the task's target, else another node by rendezvous hashing, to spread many flows."""
    nodes = builder.index.capacity.pool(labels).ranks
    if task is not None and task.target in nodes:
        return task.target
    others = (node for node in nodes if task is None or node != task.node)
    return chosen(builder.flow.name, others)
