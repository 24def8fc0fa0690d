"""Chooses warm standbys of tasks, first choice when a task's node is lost. A standby is never on
the task's node, is in another zone if possible, and stays while allowed. It uses no capacity. Each
goes to the node with the fewest standbys; ties are broken differently for each number, so that the
tasks of one node have different standbys."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from flumeng.config import CollectPlace
from flumeng.control.planner.indexed_heap import IndexedHeap
from flumeng.control.planner.placement_index import PlacementIndex
from flumeng.control.planner.plan_builder import PlanBuilder
from flumeng.control.planner.snapshot_changes import ChangeSet
from flumeng.control.snapshot.snapshot import NodeView
from zkschema.records import COLLECT, PlannedTask

Labels = tuple[tuple[str, str], ...]


class Standbys:
    def __init__(self, index: PlacementIndex) -> None:
        self._index = index
        self._zones: dict[Labels, frozenset[str]] = {}
        self._pools: dict[tuple[Labels, str], IndexedHeap[int]] = {}

    def choose(self, builder: PlanBuilder, changes: ChangeSet) -> None:
        placement, flow_index = builder.flow.collect_place, builder.flow_index
        if builder.flow.place is None or builder.snapshot.cluster.maintenance:
            return
        if placement.replicas == 1 and not flow_index.replicated:
            return
        zones = self._zones_of(placement)
        if changes.everything or (zones, placement) != (flow_index.zones, flow_index.placement):
            names: Iterable[str] = [n for n, t in builder.tasks.items() if t.kind == COLLECT]
        else:
            names = self._suspects(builder, changes)
        flow_index.zones, flow_index.placement = zones, placement
        for name in sorted(names, key=lambda name: (len(name), name)):
            task = builder.task(name)
            if task is None:
                flow_index.unprotected.discard(name)
            elif task.kind == COLLECT:
                self._choose(builder, name, task)

    def _suspects(self, builder: PlanBuilder, changes: ChangeSet) -> set[str]:
        names = {*builder.flow_index.unprotected, *builder.changes, *changes.tasks}
        for node in changes.nodes:
            for held in (self._index.of_node(node), self._index.standing_by(node)):
                names.update(name for flow, name in held if flow == builder.flow.name)
        return names

    def _choose(self, builder: PlanBuilder, name: str, task: PlannedTask) -> None:
        placement, nodes = builder.flow.collect_place, builder.snapshot.nodes
        owner = self._index.capacity.zone(task.node or "")
        count = placement.replicas - 1 if task.node is not None else 0
        kept = [node for node in task.standbys if may_stand_by(nodes.get(node), task, placement)]
        apart = [node for node in kept if self._index.capacity.zone(node) != owner]
        chosen = [*apart, *(node for node in kept if node not in apart)][:count]
        elsewhere = self._zones_of(placement) - {owner or ""}
        while len(apart) < count:
            node = self._least(placement, elsewhere, {task.node or "", *chosen}, chosen)
            if node is None:
                break
            apart.append(node)
            chosen = [*apart, *(other for other in chosen if other not in apart)][:count]
        while len(chosen) < count:
            node = self._least(placement, {owner or ""}, {task.node or "", *chosen}, ())
            if node is None:
                break
            chosen.append(node)
        protected = len(chosen) == count and (len(apart) >= count or not elsewhere)
        unprotected = builder.flow_index.unprotected
        (unprotected.discard if protected else unprotected.add)(name)
        if tuple(chosen) != task.standbys:
            self._put(builder, name, task, tuple(chosen))

    def _put(
        self, builder: PlanBuilder, name: str, task: PlannedTask, chosen: tuple[str, ...]
    ) -> None:
        builder.stand_by(name, task, chosen)
        changed = set(chosen).symmetric_difference(task.standbys)
        for pool in self._pools.values():
            for node in changed.intersection(pool.ranks):
                pool.set(node, self._rank(node))

    def _least(
        self, placement: CollectPlace, zones: Iterable[str], taken: set[str], beside: Iterable[str]
    ) -> str | None:
        """Return the node with the fewest standbys, if possible not in the zones of ``beside``."""
        used = {self._index.capacity.zone(node) for node in beside}
        candidates = [
            (zone in used, pool.ranks[node], node)
            for zone in zones
            for pool in (self._pool(placement, zone),)
            if (node := pool.first(lambda node: node not in taken)) is not None
        ]
        return min(candidates)[2] if candidates else None

    def _zones_of(self, placement: CollectPlace) -> frozenset[str]:
        labels = tuple(sorted(placement.labels.items()))
        zones = self._zones.get(labels)
        if zones is None:
            zones = self._zones[labels] = frozenset(self._index.capacity.zones(placement.labels))
        return zones

    def _pool(self, placement: CollectPlace, zone: str) -> IndexedHeap[int]:
        key = tuple(sorted(placement.labels.items())), zone
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = IndexedHeap()
            nodes = self._index.capacity.pool(placement.labels, zone).ranks
            pool.set_all({node: self._rank(node) for node in nodes})
        return pool

    def _rank(self, node: str) -> int:
        """Rank by the number of standbys, then in a different order for each number."""
        count = len(self._index.standing_by(node))
        order = blake2b(f"{count} {node}".encode(), digest_size=4).digest()
        return (count << 32) + int.from_bytes(order)


def may_stand_by(node: NodeView | None, task: PlannedTask, placement: CollectPlace) -> bool:
    """Return whether a standby may stay on the node; a node missing only briefly keeps it."""
    if node is None or node.name == task.node or (not node.live and node.down):
        return False
    return node.set_aside or node.eligible(COLLECT, placement.labels)
