"""How loaded the nodes are with collect tasks, over all flows, and which is loaded least."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from flumeng.model import FlowView
from zkschema.records import COLLECT, PlannedTask


class Load:
    """Weight of the collect tasks of each node; a task that drains counts where it goes."""

    def __init__(self, flows: Iterable[FlowView]) -> None:
        self._weights: Counter[str] = Counter()
        for flow in flows:
            for task in flow.plan.tasks.values():
                self.add(task)

    def of(self, node: str) -> int:
        return self._weights[node]

    def add(self, task: PlannedTask) -> None:
        if task.kind == COLLECT and (place := place_of(task)):
            self._weights[place] += weight(task)

    def remove(self, task: PlannedTask) -> None:
        if task.kind == COLLECT and (place := place_of(task)):
            self._weights[place] -= weight(task)


class Seats:
    """The nodes that may run a flow's collect tasks now.

    ``load`` is shared and may grow at any time; it may shrink only before the seats are made.
    """

    def __init__(self, nodes: Iterable[str], load: Load) -> None:
        self._load = load
        self._heap = [(load.of(node), node) for node in nodes]
        heapq.heapify(self._heap)

    def least_loaded(self) -> str | None:
        """The node with the least load, the first by name of several; None without nodes."""
        while self._heap:
            known, node = self._heap[0]
            actual = self._load.of(node)
            if known == actual:
                return node
            heapq.heapreplace(self._heap, (actual, node))
        return None


def weight(task: PlannedTask) -> int:
    """A task costs as much as the journals that it reads, and something even without any."""
    return max(1, len(task.partitions))


def place_of(task: PlannedTask) -> str | None:
    return task.target or task.node
