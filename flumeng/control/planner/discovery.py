"""Where the discovery task of a flow runs: one node, of those that may run its collect tasks.

It stays there as long as it may. Another node gets it at once, with a higher epoch, and its owner
is not waited for: what a discovery task writes is refused once a higher epoch has written. Nodes
that come change nothing. It costs next to nothing, so no capacity is counted for it.
"""

from __future__ import annotations

from dataclasses import replace

from flumeng.config import CollectPlace
from flumeng.config.flow_names import is_part
from flumeng.control.planner.placement_index import ASSIGNED, DRAINING, WAITING
from flumeng.control.planner.plan_builder import PlanBuilder
from flumeng.control.snapshot.rendezvous import chosen
from zkschema.records import COLLECT, DISCOVER, PlannedTask

NAME = f"{DISCOVER}.0"
ALONE = "no other node may run it"
NOWHERE = "no live node may run it"


def place_discovery(builder: PlanBuilder) -> None:
    """Bring the flow's discovery task in line; one that needs none ends its own."""
    flow = builder.flow
    if not _is_needed(builder):
        end_discovery(builder)
        return
    task = builder.task(NAME)
    wanted = _wanted(builder, flow.collect_place, task)
    if wanted != task:
        builder.become(NAME, wanted)


def _is_needed(builder: PlanBuilder) -> bool:
    """A flow that is stopped keeps it while more may come to a partition of it: only its discovery
    task knows how far that reaches, and from where it can be read again. So does an isolated part
    of a flow that ends: where the journals end it finds out."""
    flow = builder.flow
    waits = flow.record.state == "stopped" and len(flow.ending) < len(flow.partitions)
    ends = is_part(flow.name) and not flow.record.discard and builder.snapshot.owes(flow.name)
    return flow.discovers and (builder.receives or waits or ends)


def end_discovery(builder: PlanBuilder) -> None:
    if builder.task(NAME) is not None:
        builder.end(NAME)


def _wanted(builder: PlanBuilder, place: CollectPlace, task: PlannedTask | None) -> PlannedTask:
    reason = _must_leave(builder, place, task)
    if task is not None and not reason:
        return _kept(builder, place, task)
    node = _choose(builder, place, task)
    if node is not None:
        return builder.given(DISCOVER, NAME, node, reason)
    if task is None or task.node is None:
        if task is None:
            builder.why.append(f"{builder.flow.name}/{NAME} waits: {NOWHERE}")
        return PlannedTask(kind=DISCOVER, node=None, epoch=0, state=WAITING, why=NOWHERE)
    owner = builder.snapshot.nodes.get(task.node)
    alone = owner is not None and owner.live
    return replace(task, state=ASSIGNED, target=None, why=ALONE) if alone else task


def _kept(builder: PlanBuilder, place: CollectPlace, task: PlannedTask) -> PlannedTask:
    """The task, which stays with its owner."""
    kept = builder.renewed(NAME, task)
    owner = builder.snapshot.nodes[task.node or ""]
    if not owner.eligible(COLLECT, place.labels) or builder.snapshot.cluster.maintenance:
        return kept
    at_rest = kept.state == ASSIGNED and kept.why != ALONE
    return kept if at_rest else replace(kept, state=ASSIGNED, target=None, why="")


def _must_leave(builder: PlanBuilder, place: CollectPlace, task: PlannedTask | None) -> str:
    """Why somebody is to get the task now; empty when its owner keeps it."""
    if task is None or task.node is None:
        return "nobody runs it"
    owner = builder.snapshot.nodes.get(task.node)
    if owner is None:
        return f"{task.node} is gone"
    if owner.set_aside or builder.snapshot.cluster.maintenance:
        return ""
    if not owner.live:
        return f"{owner.name} is gone" if owner.lost else ""
    if task.state == DRAINING and task.target in builder.index.capacity.pool(place.labels).ranks:
        return task.why
    return "" if owner.eligible(COLLECT, place.labels) else f"{owner.name} may not keep it"


def _choose(builder: PlanBuilder, place: CollectPlace, task: PlannedTask | None) -> str | None:
    """The node that it is to go to, else one by rendezvous hashing, so that the tasks of many flows
    are spread."""
    nodes = builder.index.capacity.pool(place.labels).ranks
    if task is not None and task.target in nodes:
        return task.target
    others = (node for node in nodes if task is None or node != task.node)
    return chosen(builder.flow.name, others)
