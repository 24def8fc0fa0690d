"""Selects the node of a collect task: the least full one that may run it. ``in_turn`` counts placed
tasks in the placement index, after ``find`` the caller does: the next selection includes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flumeng.control.planner.plan_builder import PlanBuilder
from flumeng.control.snapshot.snapshot import Amounts


class NodeSelector:
    def __init__(self, builder: PlanBuilder) -> None:
        self._builder = builder
        self._capacity = builder.index.capacity
        self._placement = placement = builder.flow.collect_place
        self._flow_index = builder.flow_index
        self._pool = self._capacity.pool(placement.labels)
        self._zones = self._count_zones() if placement.spread == "zone" else None
        self._refused: set[Amounts] = set()
        most, nodes = placement.per_node, builder.flow_index.nodes
        self._accepts = (lambda node: nodes[node] < most) if most else None

    @property
    def empty(self) -> bool:
        """Whether no live node may run the flow's tasks, full or not."""
        return not self._pool.ranks

    def in_turn(self, weight: Amounts, count: int) -> Sequence[str] | None:
        """Find nodes for ``count`` equal tasks and count these; None if each needs ``find``."""
        plain = self._zones is None and self._accepts is None
        nodes = self._capacity.in_turn(self._pool, weight, count) if plain else None
        for node, number in Counter(nodes).items():
            self.count(node, weight, number)
        return nodes

    def count(self, node: str, weight: Amounts, number: int = 1) -> None:
        """Count ``number`` tasks of the flow as placed on the node."""
        self._builder.index.count_on(self._builder.flow, node, weight, number)
        if self._zones is not None:
            zone = self._capacity.zone(node)
            if zone in self._zones:
                self._zones[zone] += number

    def find(
        self, weight: Amounts, target: str | None = None, standbys: Sequence[str] = ()
    ) -> str | None:
        """Return ``target`` if it has room, then the first fitting standby, else the least full
        node; with spread by zone, one in the zone with the fewest tasks. None if none has room."""
        accepts = self._accepts
        if target is not None and self._has_room(target, weight):
            return target
        for standby in standbys:
            if self._has_room(standby, weight) and (accepts is None or accepts(standby)):
                return standby
        if weight in self._refused:
            return None
        if self._zones is None:
            node = self._capacity.least_full(self._pool, weight, accepts)
        else:
            node = None
            for zone in sorted(self._zones, key=lambda zone: (self._zones[zone], zone)):  # type: ignore[index]
                pool = self._capacity.pool(self._placement.labels, zone)
                node = self._capacity.least_full(pool, weight, accepts)
                if node is not None:
                    break
        if node is None:
            self._refused.add(weight)
        return node

    def _has_room(self, node: str, weight: Amounts) -> bool:
        return node in self._pool.ranks and self._capacity.fits(node, weight)

    def _count_zones(self) -> dict[str, int]:
        counts = dict.fromkeys(self._capacity.zones(self._placement.labels), 0)
        for node, number in self._flow_index.nodes.items():
            zone = self._capacity.zone(node)
            if zone in counts:
                counts[zone] += number
        return counts
