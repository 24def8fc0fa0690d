"""Moves tasks to even out the load. A cluster throttle limits concurrent moves. No move begins in
maintenance mode, or in a pool with a node that could run a task without a live owner. A move is a
handoff: the task is ``draining`` towards its new node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from flumeng.control.planner.indexed_heap import IndexedHeap
from flumeng.control.planner.placement_index import ASSIGNED, DRAINING, WAITING, PlacementIndex
from flumeng.control.planner.plan_builder import PlanBuilder
from flumeng.control.snapshot.snapshot import Amounts, FlowView, Snapshot, thousandths
from zkschema.records import COLLECT, PlannedTask

Drafts = Mapping[str, PlanBuilder]


def balance(builders: Drafts, snapshot: Snapshot, index: PlacementIndex) -> None:
    round_ = _begin(snapshot, builders, index)
    if round_ is None:
        return
    running = [d for d in builders.values() if d.flow.place and d.flow.record.state == "running"]
    for builder in running:
        if builder.flow.collect_place.spread == "zone":
            round_.even_out_zones(builder)
    pools: dict[tuple[tuple[str, str], ...], list[PlanBuilder]] = {}
    for builder in running:
        labels = builder.flow.collect_place.labels
        pools.setdefault(tuple(sorted(labels.items())), []).append(builder)
    for pool, members in pools.items():
        round_.even_out(dict(pool), {builder.flow.name: builder for builder in members})


def _begin(snapshot: Snapshot, builders: Drafts, index: PlacementIndex) -> _Round | None:
    """Return a round that counts the moves under way; None when no move may begin."""
    moves = snapshot.balance_moves if snapshot.throttled_moves else 0
    if snapshot.cluster.maintenance or not moves:
        return None
    round_ = _Round(snapshot, index, moves)
    for name, view in snapshot.flows.items():
        builder = builders.get(name)
        for task_name in index.flow_index(name).unsettled:
            task = builder.task(task_name) if builder else view.tasks.get(task_name)
            assert task is not None, f"{name}/{task_name} is in the index only"
            if task.state == WAITING:
                round_.reserve(builder.flow if builder else view, task)
            if task.state == DRAINING:
                round_.count(name, task)
    for (name, _), task in index.unowned():
        builder = builders.get(name)
        round_.reserve(builder.flow if builder else snapshot.flows[name], task)
    return round_


@dataclass
class _Round:
    """A round: ``moves_left`` may begin. ``reserved``: nodes that could run an unowned task."""

    snapshot: Snapshot
    index: PlacementIndex
    moves_left: int
    by_node: Counter[str] = field(default_factory=Counter)
    by_flow: Counter[str] = field(default_factory=Counter)
    reserved: set[str] = field(default_factory=set)
    _reserved_for: set[tuple[object, ...]] = field(default_factory=set)

    def reserve(self, flow: FlowView, task: PlannedTask) -> None:
        """Reserve the nodes that could run this task, which has no live owner: their pools rest."""
        if flow.set_aside or flow.place is None:
            return
        placement, weight = flow.collect_place, flow.weight(task.partitions)
        labels, most = tuple(sorted(placement.labels.items())), placement.per_node
        key = (labels, weight, *((flow.name, most) if most else ()))
        if key in self._reserved_for:
            return
        self._reserved_for.add(key)
        capacity, nodes = self.index.capacity, self.index.flow_index(flow.name).nodes
        self.reserved.update(
            node
            for node in capacity.pool(placement.labels).ranks
            if capacity.fits(node, weight) and not (most and nodes[node] >= most)
        )

    def _is_reserved(self, pool: IndexedHeap[float]) -> bool:
        return not self.reserved.isdisjoint(pool.ranks)

    def count(self, flow: str, task: PlannedTask) -> None:
        assert task.node is not None
        self.moves_left -= 1
        self.by_flow[flow] += 1
        self.by_node[task.node] += 1
        if task.target:
            self.by_node[task.target] += 1

    def even_out(self, labels: Mapping[str, str], members: Drafts) -> None:
        """Move tasks within a pool from the fullest nodes to the least full one, while the target
        becomes less full than the source was."""
        pool = self.index.capacity.pool(labels)
        if self._is_reserved(pool):
            return
        lightest = min(_lightest(builder.flow) for builder in members.values())
        while self.moves_left > 0:
            target = pool.first(self._free)
            move = target and self._worth_moving(pool, members, target, lightest)
            if not target or not move:
                return
            self._move(*move, target)

    def even_out_zones(self, builder: PlanBuilder) -> None:
        """Move the flow's tasks from the zone with most to the one with fewest, one at a time."""
        labels, capacity = builder.flow.collect_place.labels, self.index.capacity
        if self._is_reserved(capacity.pool(labels)):
            return
        while self.moves_left > 0:
            zones = dict.fromkeys(capacity.zones(labels), 0)
            for node, number in builder.flow_index.nodes.items():
                if (zone := capacity.zone(node)) in zones:
                    zones[zone] += number
            if not zones:
                return
            fewest = min(zones, key=lambda zone: (zones[zone], zone))
            fullest = max(zones, key=lambda zone: (zones[zone], zone))
            target = capacity.pool(labels, fewest).first(self._free)
            if zones[fullest] - zones[fewest] < 2 or target is None:
                return
            sources = sorted(
                (node for node in builder.flow_index.nodes if capacity.zone(node) == fullest),
                key=lambda node: (-capacity.fullness(node), node),
            )
            own = {builder.flow.name: builder}
            move = next(
                (
                    movable
                    for source in sources
                    for movable in self._movable(source, own)
                    if self._has_room(builder, movable[2], target)
                ),
                None,
            )
            if move is None:
                return
            self._move(*move, target)

    def _worth_moving(
        self, pool: IndexedHeap[float], members: Drafts, target: str, lightest: Amounts
    ) -> tuple[PlanBuilder, str, PlannedTask] | None:
        """Return the heaviest task worth moving from the fullest node that has one, or None."""
        capacity = self.index.capacity
        bound = capacity.fullness(target, lightest)
        if max(fullness for fullness in pool.ranks.values()) <= bound:
            return None
        fuller = [(full, node) for node, full in pool.ranks.items() if full > bound]
        for full, source in sorted(fuller, key=lambda entry: (-entry[0], entry[1])):
            worth = [
                (
                    capacity.fullness(target, builder.flow.weight(task.partitions)),
                    builder,
                    name,
                    task,
                )
                for builder, name, task in self._movable(source, members)
                if self._has_room(builder, task, target)
                and self._keeps_spread(builder, source, target)
            ]
            best = max(
                (
                    (then, builder.flow.name, name)
                    for then, builder, name, _ in worth
                    if then < full
                ),
                default=None,
            )
            if best is not None:
                builder = members[best[1]]
                task = builder.task(best[2])
                assert task is not None
                return builder, best[2], task
        return None

    def _movable(
        self, node: str, members: Drafts
    ) -> Iterator[tuple[PlanBuilder, str, PlannedTask]]:
        """Yield the tasks of these flows on the node that could begin to move now."""
        limit = self.snapshot.cluster.throttles.get("balance_per_flow")
        if not self._free(node):
            return
        for (flow, name), task in sorted(self.index.of_node(node).items(), key=itemgetter(0)):
            builder = members.get(flow)
            free = builder is not None and (limit is None or self.by_flow[flow] < limit)
            if builder and free and task.kind == COLLECT and task.state == ASSIGNED:
                yield builder, name, task

    def _free(self, node: str) -> bool:
        limit = self.snapshot.cluster.throttles.get("balance_per_node")
        return limit is None or self.by_node[node] < limit

    def _has_room(self, builder: PlanBuilder, task: PlannedTask, target: str) -> bool:
        most = builder.flow.collect_place.per_node
        crowded = most and builder.flow_index.nodes[target] >= most
        weight = builder.flow.weight(task.partitions)
        return not crowded and self.index.capacity.fits(target, weight)

    def _keeps_spread(self, builder: PlanBuilder, source: str, target: str) -> bool:
        if builder.flow.collect_place.spread != "zone":
            return True
        capacity, counts = self.index.capacity, builder.flow_index.nodes
        old, new = capacity.zone(source), capacity.zone(target)
        inside: Counter[str | None] = Counter()
        for node, number in counts.items():
            inside[capacity.zone(node)] += number
        return old == new or inside[old] > inside[new]

    def _move(self, builder: PlanBuilder, name: str, task: PlannedTask, target: str) -> None:
        why = f"node {task.node} is busier than {target}"
        draining = builder.leaving(task, target, why)
        builder.put(name, draining)
        builder.throttled = True
        builder.why.append(
            f"task {builder.flow.name}/{name} is to move from {task.node} to {target}: {why}"
        )
        self.count(builder.flow.name, draining)


def _lightest(flow: FlowView) -> Amounts:
    own = [thousandths(weight) for weight in flow.weights.values() if weight]
    return min([flow.weight(()), *own], key=lambda weight: sum(amount for _, amount in weight))
