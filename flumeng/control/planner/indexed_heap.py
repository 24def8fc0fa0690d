"""A heap of names by a changing number; outdated entries are dropped when they reach the top."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

Rank = TypeVar("Rank", int, float)

SPARE_ENTRIES = 1024


class IndexedHeap(Generic[Rank]):
    """Names by number, smallest first, then by name. Callers must not change ``ranks``."""

    def __init__(self) -> None:
        self.ranks: dict[str, Rank] = {}
        self._heap: list[tuple[Rank, str]] | None = None

    def set(self, name: str, rank: Rank) -> None:
        before = self.ranks.get(name)
        if before == rank:
            return
        self.ranks[name] = rank
        heap = self._heap
        if heap is None:
            return
        if heap and heap[0] == (before, name):
            heapq.heapreplace(heap, (rank, name))
            return
        heapq.heappush(heap, (rank, name))
        if len(heap) > 2 * len(self.ranks) + SPARE_ENTRIES:
            self._heap = None

    def set_all(self, ranks: Mapping[str, Rank]) -> None:
        self.ranks.update(ranks)
        self._heap = None

    def take(self, count: int, step: Rank) -> Iterator[str]:
        """Yield the then first name and add ``step`` to its number, ``count`` times."""
        ranks = self.ranks
        for _ in range(count):
            heap = self._entries()
            while ranks.get((entry := heap[0])[1]) != entry[0]:
                heapq.heappop(heap)
            rank, name = entry
            ranks[name] = rank + step
            heapq.heapreplace(heap, (rank + step, name))
            yield name

    def discard(self, name: str) -> None:
        self.ranks.pop(name, None)

    def first(self, accepts: Callable[[str], bool] | None = None) -> str | None:
        refused: list[tuple[Rank, str]] = []
        first = None
        heap = self._entries()
        while heap and first is None:
            rank, name = heap[0]
            if self.ranks.get(name) != rank:
                heapq.heappop(heap)
            elif accepts is None or accepts(name):
                first = name
            else:
                refused.append(heapq.heappop(heap))
        for entry in refused:
            heapq.heappush(heap, entry)
        return first

    def _entries(self) -> list[tuple[Rank, str]]:
        if self._heap is None:
            self._heap = [(rank, name) for name, rank in self.ranks.items()]
            heapq.heapify(self._heap)
        return self._heap
