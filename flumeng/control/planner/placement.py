"""Sticky placement of a flow's tasks on nodes. After the grace period a task of a lost owner goes
to another node under a higher epoch; fencing makes that safe. A task whose owner may no longer run
it, or is overloaded, is ``draining``: its owner finishes its batch, acks and releases it, or loses
it at a deadline. In maintenance mode no move begins. A task that is to end or to lose partitions
also drains when its owner has decided a batch. An earlier owner's batch is repeated first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count, islice, takewhile
from typing import NamedTuple

from flumeng.config import CollectPlace
from flumeng.control.planner.discovery import ALONE, end_discovery, place_discovery
from flumeng.control.planner.node_selector import NodeSelector
from flumeng.control.planner.partition_assigner import PartitionAssigner, count_open
from flumeng.control.planner.placement_index import (
    ASSIGNED,
    DRAINING,
    WAITING,
    counted_on,
    in_order,
)
from flumeng.control.planner.plan_builder import PlanBuilder
from flumeng.control.planner.snapshot_changes import ChangeSet
from flumeng.control.planner.task_count import PARTITIONS_A_LANE, given_tasks, task_count
from flumeng.control.snapshot.snapshot import NodeView
from zkschema.records import COLLECT, INGEST, NOTHING, PlannedTask

UNOWNED = "no node runs it"
REASONS = 1000
"""Above this number of new tasks, the reasons of the others are summed up in one."""


def place_tasks(builder: PlanBuilder, changes: ChangeSet) -> None:
    if builder.flow.place is None:
        _end_unreadable(builder)
        return
    _pin(builder, builder.flow.place.ingest.labels, changes)
    place_discovery(builder)
    if _collects(builder):
        _spread(builder, changes)
    else:
        _end_collecting(builder)
        _settle(builder, in_order(builder.held), {}, {})


def may_collect(node: NodeView, placement: CollectPlace) -> bool:
    return node.live and node.eligible(COLLECT, placement.labels)


def _pin(builder: PlanBuilder, labels: Mapping[str, str], changes: ChangeSet) -> None:
    """Plan one ingest task on every matching node, live or not; also while suspended."""
    nodes = builder.snapshot.nodes
    receives = builder.receives and builder.flow.pins
    for node in sorted(nodes) if changes.everything else changes.nodes:
        view = nodes.get(node)
        if view is not None and view.set_aside:
            continue
        name = f"{INGEST}.{node}"
        task = builder.task(name)
        if receives and view is not None and view.eligible(INGEST, labels):
            if task is None:
                builder.put(name, builder.assigned(INGEST, name, node, "its sources run there"))
        elif task is not None:
            builder.end(name)
    if changes.everything:
        for name, task in builder.tasks.items():
            if task.kind == INGEST and task.node not in nodes:
                builder.end(name)


def _end_unreadable(builder: PlanBuilder) -> None:
    """End the tasks that are to end; an unreadable revision changes nothing else."""
    if not builder.receives:
        for name in in_order(n for n, t in builder.tasks.items() if t.kind == INGEST):
            builder.end(name)
        end_discovery(builder)
    if not _collects(builder):
        _end_collecting(builder)


def _end_collecting(builder: PlanBuilder) -> None:
    for name in in_order(n for n, t in builder.tasks.items() if t.kind == COLLECT):
        if builder.may_lose(name):
            builder.end(name)
        else:
            builder.held.add(name)


def _collects(builder: PlanBuilder) -> bool:
    """Return whether to collect the flow: an ending one until journals and commits are done."""
    record, snapshot = builder.flow.record, builder.snapshot
    if record.state in ("running", "suspended"):
        return record.state == "running"
    name = builder.flow.name
    unfinished = name in snapshot.committing or snapshot.has_undelivered(name)
    return unfinished and not record.discard


class _Unplaced(NamedTuple):
    """A task without an owner. ``task``: the planned one, if any; ``lost``: its node is down."""

    name: str
    partitions: tuple[str, ...]
    reason: str
    task: PlannedTask | None
    lost: bool = False


def _spread(builder: PlanBuilder, changes: ChangeSet) -> None:
    tasks = _count_tasks(builder, changes)
    if tasks != len(builder.flow_index.sizes.ranks):
        changes = replace(changes, everything=True)
    assigner = PartitionAssigner(builder, tasks, changes)
    changed = assigner.changed()
    _settle(builder, _suspects(builder, changes, changed), changed, assigner.fresh)


def _settle(
    builder: PlanBuilder,
    suspects: Iterable[str],
    changed: Mapping[str, PlannedTask],
    fresh: Mapping[str, tuple[str, ...]],
) -> None:
    """Keep the ``suspects`` that can stay, some as ``changed``; place all others and ``fresh``."""
    unplaced: list[_Unplaced] = []
    placed: list[tuple[str, PlannedTask]] = []
    for name in suspects:
        before = builder.task(name)
        if before is None:
            continue
        task = changed.get(name, before)
        reason = _must_leave(builder, name, task)
        if reason is None:
            placed.append((name, task))
        else:
            builder.put(name, None)
            owner = builder.snapshot.nodes.get(task.node or "")
            lost = owner is not None and owner.down
            unplaced.append(_Unplaced(name, task.partitions, reason, task, lost))
    if unplaced or not _begin_in_turn(builder, fresh):
        unplaced += [_Unplaced(name, reads, UNOWNED, None) for name, reads in fresh.items()]
        _hand_over(builder, unplaced)
    if placed:
        _keep_all(builder, placed)


def _count_tasks(builder: PlanBuilder, changes: ChangeSet) -> int:
    """Return the target number of tasks. Maintenance mode keeps a computed or proposed number."""
    placement, planned = builder.flow.collect_place, _planned(builder)
    by_hand = isinstance(placement.tasks, int)
    if planned and not by_hand and builder.snapshot.cluster.maintenance:
        return planned
    given = given_tasks(placement.tasks, builder.flow.proposed_tasks, planned)
    partitions = count_open(builder, changes)
    unit = placement.weight.get("slots", 1.0)
    more = (PARTITIONS_A_LANE - 1) * builder.flow.lanes
    slots = unit * (partitions + more) + builder.flow.slots_beyond(unit)
    nodes = len(builder.index.capacity.pool(placement.labels).ranks)
    tasks = task_count(given, planned, partitions, slots, nodes)
    if tasks < planned and builder.decides:
        left = _left_at_first(builder, tasks)
        if task_count(given, left, partitions, slots, nodes) == left:
            return left
    return tasks


def _planned(builder: PlanBuilder) -> int:
    """Return the current number of tasks, without those that only wait for a batch to end."""
    ranks = builder.flow_index.sizes.ranks
    if not builder.decides:
        return len(ranks)
    return next(n for n in count() if f"{COLLECT}.{n}" not in ranks)


def _left_at_first(builder: PlanBuilder, tasks: int) -> int:
    """Return ``tasks`` plus the following ones that may not end yet because of a batch."""
    names = (f"{COLLECT}.{n}" for n in count(tasks))
    ranks = builder.flow_index.sizes.ranks
    held = takewhile(lambda name: name in ranks and not builder.may_lose(name), names)
    return tasks + sum(1 for _ in held)


def _keep_all(builder: PlanBuilder, placed: Iterable[tuple[str, PlannedTask]]) -> None:
    """Keep tasks with their owners; one whose owner may not run it is tried in each round."""
    labels, selector = builder.flow.collect_place.labels, NodeSelector(builder)
    for name, task in placed:
        kept = _keep(builder, name, task, selector)
        if kept != builder.task(name):
            builder.put(name, kept)
        owner = builder.snapshot.nodes[kept.node or ""]
        if kept.state == ASSIGNED and owner.live:
            stays = owner.eligible(COLLECT, labels)
            (builder.flow_index.unsettled.discard if stays else builder.flow_index.unsettled.add)(
                name
            )


def _suspects(builder: PlanBuilder, changes: ChangeSet, changed: Iterable[str]) -> Iterable[str]:
    if changes.everything:
        return in_order(name for name, t in builder.tasks.items() if t.kind == COLLECT)
    own = builder.flow.name
    on_changed = (
        name
        for node in changes.nodes
        for (flow, name), task in builder.index.of_node(node).items()
        if flow == own and task.kind == COLLECT
    )
    collect = (name for name in changes.tasks if name.startswith(f"{COLLECT}."))
    own_changes = (*builder.flow_index.unsettled, *changed, *builder.held)
    return in_order({*on_changed, *collect, *own_changes})


def _must_leave(builder: PlanBuilder, name: str, task: PlannedTask) -> str | None:
    """Return why the task needs a new owner now; None when it does not."""
    if task.node is None:
        return UNOWNED
    owner = builder.snapshot.nodes.get(task.node)
    if owner is None:
        return f"node {task.node} is no longer registered"
    if not owner.live:
        stays = builder.snapshot.cluster.maintenance or not owner.down
        return None if stays else f"node {task.node} is down"
    if task.state == DRAINING:
        late = f"{builder.flow.name}/{name}" in builder.snapshot.overdue
        if owner.has_released(builder.flow.name, name):
            intent = builder.intent(name)
            waits = name in builder.held and not late and not (intent and intent.open)
            return None if waits else f"node {owner.name} released it"
        if late:
            return f"node {owner.name} did not release it in time"
    return None


def _has_decided(builder: PlanBuilder, name: str, task: PlannedTask) -> bool:
    """Return whether the open batch was decided by the task's current owner."""
    intent = builder.intent(name)
    return bool(intent and intent.record and intent.open and intent.record.epoch == task.epoch)


def _keep(
    builder: PlanBuilder, name: str, task: PlannedTask, selector: NodeSelector
) -> PlannedTask:
    """Keep the owner for now. The task drains if it must leave the owner or end a batch first."""
    assert task.node is not None
    owner = builder.snapshot.nodes[task.node]
    if not owner.live or owner.set_aside:
        return task
    flow, placement = builder.flow, builder.flow.collect_place
    if task.state == ASSIGNED:
        task = builder.renewed(name, task)
    if name in builder.held and owner.eligible(COLLECT, placement.labels):
        if task.state == ASSIGNED and _has_decided(builder, name, task):
            why = "partitions leave it, or it ends, when its batch is finished"
            builder.why.append(f"task {flow.name}/{name} is to finish its batch: {why}")
            return builder.leaving(task, None, why)
        return task
    target = builder.snapshot.nodes.get(task.target or "")
    on_its_way = task.state == DRAINING and target is not None and may_collect(target, placement)
    if not owner.eligible(COLLECT, placement.labels):
        if builder.snapshot.cluster.maintenance or on_its_way:
            return task
        weight = flow.weight(task.partitions)
        free = selector.find(weight, None, task.standbys) if task.partitions else None
        if task.partitions and free is None:
            return replace(task, state=ASSIGNED, target=None, why=ALONE)
        if task.state == DRAINING and free is None:
            return task
        builder.why.append(f"task {flow.name}/{name} is to leave node {owner.name}")
        return builder.leaving(task, free, f"node {owner.name} may no longer run it")
    if task.state == DRAINING and not on_its_way:
        builder.why.append(f"task {flow.name}/{name} stays on node {owner.name}")
        return replace(task, state=ASSIGNED, target=None, why="")
    return task


def _begin_in_turn(builder: PlanBuilder, fresh: Mapping[str, tuple[str, ...]]) -> bool:
    """Give new tasks of equal weight to the least full nodes; False when each needs a search."""
    weights = builder.flow.distinct_weights(fresh.values())
    nodes = None
    if len(weights) == 1:
        nodes = NodeSelector(builder).in_turn(weights.pop(), len(fresh))
    if nodes is None:
        return not fresh
    flow = builder.flow.name
    some = zip(islice(fresh, REASONS), nodes, strict=False)
    builder.why += [f"task {flow}/{name} goes to node {node}: {UNOWNED}" for name, node in some]
    if len(fresh) > REASONS:
        builder.why.append(f"flow {flow}: {len(fresh) - REASONS} more tasks go to nodes")
    epochs = range(builder.epoch + 1, builder.epoch + 1 + len(fresh))
    begun = {
        name: PlannedTask(
            kind=COLLECT,
            node=node,
            epoch=epoch,
            state=ASSIGNED,
            partitions=partitions,
            extra=NOTHING,
        )
        for (name, partitions), node, epoch in zip(fresh.items(), nodes, epochs, strict=True)
    }
    builder.epoch += len(begun)
    builder.changes.update(begun)
    builder.index.enter_counted(builder.flow, begun.items())
    return True


def _hand_over(builder: PlanBuilder, unplaced: list[_Unplaced]) -> None:
    """Give each task, heaviest first, to its target, a standby or the least full node."""
    flow = builder.flow
    weighed = [(flow.weight(entry.partitions), entry) for entry in unplaced]
    weighed.sort(key=lambda pair: -sum(amount for _, amount in pair[0]))
    selector = NodeSelector(builder)
    stranded, tasks = [], []
    for weight, (name, partitions, reason, before, lost) in weighed:
        target, standbys = (before.target, before.standbys) if before else (None, ())
        node = selector.find(weight, target, standbys)
        if node is not None and lost and not builder.begin_recovery():
            assert before is not None
            stranded.append(name)
            task = before
            selector.count(counted_on(before) or "", weight)
        elif node is not None:
            selector.count(node, weight)
            revision = before.revision if before else 0
            task = builder.assigned(
                COLLECT,
                name,
                node,
                reason,
                partitions=partitions,
                revision=revision,
                standbys=standbys,
            )
        else:
            stranded.append(name)
            task = _waiting(builder, name, partitions, before, selector)
            keeps = counted_on(task)
            if keeps is not None:
                selector.count(keeps, weight)
        tasks.append((name, task))
    builder.changes.update(tasks)
    builder.index.enter_counted(flow, tasks)
    builder.flow_index.unsettled.update(stranded)


def _waiting(
    builder: PlanBuilder,
    name: str,
    partitions: tuple[str, ...],
    before: PlannedTask | None,
    selector: NodeSelector,
) -> PlannedTask:
    """Return a task for which no node has room; it keeps its previous owner for now, if any."""
    why = "no live node may run it" if selector.empty else "no node has room for it"
    if before is None:
        builder.why.append(f"task {builder.flow.name}/{name} waits: {why}")
        return PlannedTask(
            kind=COLLECT, node=None, epoch=0, state=WAITING, partitions=partitions, why=why
        )
    owner = builder.snapshot.nodes.get(before.node or "")
    if owner and owner.live and partitions and owner.has_released(builder.flow.name, name):
        retained = builder.assigned(
            COLLECT,
            name,
            owner.name,
            ALONE,
            partitions=partitions,
            revision=before.revision,
            standbys=before.standbys,
        )
        stays = owner.eligible(COLLECT, builder.flow.collect_place.labels)
        return retained if stays else replace(retained, why=ALONE)
    return before if before.node else replace(before, why=why)
