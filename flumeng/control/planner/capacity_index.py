"""Index of the load of nodes by collect tasks of all flows. A node's *fullness* is its dominant
share (Ghodsi et al., NSDI 2011). A declared capacity is a limit. A node without ``slots`` counts as
having its Spark cores, else eight, but has no limit."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from flumeng.control.planner.indexed_heap import IndexedHeap
from flumeng.control.snapshot.snapshot import Amounts, NodeView, thousandths
from zkschema.records import COLLECT

SLOTS_UNDECLARED = {"slots": 8000}
PoolKey = tuple[tuple[tuple[str, str], ...], str | None]


class CapacityIndex:
    """Load and capacities of nodes, in thousandths. ``_limited`` nodes declare a capacity."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, int]] = {}
        self._limits: dict[str, Mapping[str, int]] = {}
        self._limited: set[str] = set()
        self._cores: dict[str, int] = {}
        """Cores of a Spark cluster, in thousandths: the slots of a node that declares none."""
        self._nodes: dict[str, NodeView] = {}
        self._pools: dict[PoolKey, IndexedHeap[float]] = {}
        self._pools_of: dict[str, list[IndexedHeap[float]]] = {}

    def put_node(self, name: str, view: NodeView | None) -> None:
        if view is None:
            self._nodes.pop(name, None)
            self._limits.pop(name, None)
            self._cores.pop(name, None)
        else:
            self._nodes[name] = view
            self._limits[name] = dict(thousandths(view.record.capacity))
            self._cores[name] = 1000 * view.spark_cores
        (self._limited.add if self._limits.get(name) else self._limited.discard)(name)
        for key, pool in self._pools.items():
            self._enter(key, pool, name)

    def knows(self, node: str) -> bool:
        return node in self._nodes

    def add(self, node: str, weight: Amounts, count: int = 1) -> None:
        used = self._used.get(node)
        if used is None:
            used = self._used[node] = {}
        for dimension, amount in weight:
            used[dimension] = used.get(dimension, 0) + count * amount
        if count < 0 and not any(used.values()):
            del self._used[node]
        pools = self._pools_of.get(node)
        if pools:
            fullness = self.fullness(node)
            for pool in pools:
                pool.set(node, fullness)

    def fullness(self, node: str, more: Amounts = ()) -> float:
        """Return the used share of the scarcest capacity with ``more`` added; over 1: overload."""
        used = self._used.get(node, {})
        if more:
            used = dict(used)
            for dimension, amount in more:
                used[dimension] = used.get(dimension, 0) + amount
        limits = self._limits.get(node, SLOTS_UNDECLARED)
        fullest = 0.0
        for dimension, amount in used.items():
            limit = limits.get(dimension) or self._size(node, dimension)
            if limit and amount / limit > fullest:
                fullest = amount / limit
        return fullest

    def _size(self, node: str, dimension: str) -> int | None:
        cores = self._cores.get(node) if dimension == "slots" else None
        return cores or SLOTS_UNDECLARED.get(dimension)

    def fits(self, node: str, weight: Amounts) -> bool:
        limits = self._limits.get(node)
        if not limits:
            return True
        used = self._used.get(node, {})
        return all(
            used.get(dimension, 0) + amount <= limits[dimension]
            for dimension, amount in weight
            if dimension in limits
        )

    def pool(self, labels: Mapping[str, str], zone: str | None = None) -> IndexedHeap[float]:
        """Return the zone's live nodes that may collect under these labels, least full first."""
        key = (tuple(sorted(labels.items())), zone)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = IndexedHeap()
            for name in self._nodes:
                self._enter(key, pool, name)
        return pool

    def zones(self, labels: Mapping[str, str]) -> set[str]:
        return {self._nodes[name].record.zone for name in self.pool(labels).ranks}

    def zone(self, node: str) -> str | None:
        view = self._nodes.get(node)
        return view.record.zone if view else None

    def least_full(
        self,
        pool: IndexedHeap[float],
        weight: Amounts,
        accepts: Callable[[str], bool] | None = None,
    ) -> str | None:
        if not self._limited:
            return pool.first(accepts)
        return pool.first(
            lambda node: self.fits(node, weight) and (accepts is None or accepts(node))
        )

    def in_turn(self, pool: IndexedHeap[float], weight: Amounts, count: int) -> list[str] | None:
        """Return the nodes that ``least_full`` would choose for ``count`` tasks one after another,
        without counting them. None without nodes, or if any node has limits or Spark cores."""
        if self._limited or not pool.ranks or any(self._cores.values()):
            return None
        names = sorted(pool.ranks)
        total = len(names)
        used = (self._used.get(name, {}).get("slots", 0) for name in names)
        heap = [slots * total + number for number, slots in enumerate(used)]
        heapq.heapify(heap)
        step = dict(weight).get("slots", 0) * total
        nodes = []
        for _ in range(count):
            first = heap[0]
            nodes.append(names[first % total])
            heapq.heapreplace(heap, first + step)
        return nodes

    def _enter(self, key: PoolKey, pool: IndexedHeap[float], name: str) -> None:
        labels, zone = key
        view = self._nodes.get(name)
        if (
            view is not None
            and view.live
            and view.eligible(COLLECT, dict(labels))
            and zone in (None, view.record.zone)
        ):
            if name not in pool.ranks:
                self._pools_of.setdefault(name, []).append(pool)
            pool.set(name, self.fullness(name))
        elif name in pool.ranks:
            pool.discard(name)
            self._pools_of[name].remove(pool)
            if not self._pools_of[name]:
                del self._pools_of[name]
