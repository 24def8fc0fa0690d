"""Lanes of a queue: their items, range cuts, and the choice of a lane for each object."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import accumulate, takewhile

from flumeng.connectors.objects.formats import cuttable
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.pages import Listed
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item

EVENT_BYTES = 200
"""Estimated bytes of a line; below, of an event of an item read whole, mostly compressed."""
WHOLE_EVENT_BYTES = 20
ITEM_EVENTS = 50

Cuttable = Callable[[str], bool]


def weight(size: int, *, cuttable: bool) -> int:
    """Return an item's estimated events, plus ITEM_EVENTS for its opening. The formula must not
    change: a repeated batch needs equal cuts."""
    return ITEM_EVENTS + -(-size // (EVENT_BYTES if cuttable else WHOLE_EVENT_BYTES))


class LaneContents:
    """``Contents`` of a lane. ``lane``: consecutive items from the first unacked one. ``until``: by
    item number, the position where reading ends; weights ignore it."""

    def __init__(
        self, lane: Sequence[Item], cuttable: Cuttable, until: Mapping[int, int] | None = None
    ) -> None:
        self._items = lane
        self._cuttable = cuttable
        self._until = until or {}

    def events(self, start: int, end: int) -> int:
        return max(1, self._below(end) - self._below(start)) if start < end else 0

    def cut(self, start: int, end: int, events: int) -> int:
        target = self._below(start) + max(1, events)
        index = bisect_right(self._borders, target) - 1
        if index >= len(self._items):
            return end
        item = self._items[index]
        if self._cuttable(item.location) and item.size:
            into = (target - self._borders[index] - ITEM_EVENTS) * EVENT_BYTES
            border = item.start + max(0, into) if into < item.size else item.end
        else:
            border = item.start
        if border <= start:  # not even its first item fits
            border = items.offset_of(items.number_of(start) + 1)
        return min(border, end)

    def address(self, start: int, end: int) -> str:
        first = items.number_of(start) - self._first
        last = items.number_of(end - 1) - self._first
        touched = self._items[max(0, first) : last + 1]
        return items.encode(
            replace(item, until=self._until[item.number]) if item.number in self._until else item
            for item in touched
        )

    @property
    def _first(self) -> int:
        return self._items[0].number if self._items else 0

    @cached_property
    def _borders(self) -> list[int]:
        return list(accumulate(map(self._weight, self._items), initial=0))

    def _weight(self, item: Item) -> int:
        return weight(item.size, cuttable=self._cuttable(item.location))

    def _below(self, offset: int) -> int:
        index = items.number_of(offset) - self._first
        if index < 0:
            return 0
        if index >= len(self._items):
            return self._borders[-1]
        item, position = self._items[index], items.position_of(offset)
        if not position:
            return self._borders[index]
        part = min(position, item.size)
        whole = self._weight(item)
        inside = ITEM_EVENTS + part // EVENT_BYTES if self._cuttable(item.location) else whole
        return self._borders[index] + min(inside, whole)


Weigh = Callable[[str, int], int]


def alike(location: str, size: int) -> int:
    """Return 1: items that are not objects have equal weights."""
    del location, size
    return 1


def weigh(source: ObjectsSource) -> Weigh:
    in_parts = cuttable(source)
    return lambda location, size: weight(size, cuttable=in_parts(location))


def spread(objects: Iterable[Listed], waiting: Mapping[str, int], weigh: Weigh) -> list[str]:
    """Return the lane of each object: the first one with the least ``waiting`` weight."""
    heap = [(least, number, lane) for number, (lane, least) in enumerate(waiting.items())]
    heapify(heap)
    lanes = []
    for listed in objects:
        least, number, lane = heap[0]
        lanes.append(lane)
        heapreplace(heap, (least + weigh(listed.location, listed.size), number, lane))
    return lanes


class LaneState:
    """A lane in its writer's memory; ``kept`` counts items, ``weight`` is that of unacked ones. An
    append never iterates over waiting items."""

    def __init__(self, next: int = 0, weigh: Weigh = alike) -> None:
        self.next = next
        self.acked = self.kept = self.weight = 0
        self.segments: deque[tuple[Item, ...]] = deque()
        self._weigh = weigh
        self._waiting: deque[Item] = deque()

    def append(self, part: Sequence[Item]) -> None:
        self.segments.append(tuple(part))
        self.next = part[-1].number + 1
        self.kept += len(part)
        self._wait(part)

    def acknowledge(self, number: int) -> None:
        """Note that all items below ``number`` are acked. A reset of the lane lowers ``number``."""
        if number < self.acked:
            self._waiting.clear()
            self.acked = self.weight = 0
            self._wait([item for part in self.segments for item in part])
        self.acked = number
        while self._waiting and self._waiting[0].number < number:
            self.weight -= self._weight_of(self._waiting.popleft())

    def remove(self, part: tuple[Item, ...]) -> None:
        self.segments.remove(part)
        self.kept -= len(part)

    def bytes_from(self, offset: int) -> int:
        """Return the bytes of the items from ``offset`` on. Thread-safe."""
        return items.bytes_from((item for part in list(self.segments) for item in part), offset)

    def done(self) -> list[tuple[Item, ...]]:
        return [*takewhile(lambda part: part[-1].number < self.acked, self.segments)]

    def _wait(self, part: Sequence[Item]) -> None:
        waiting = [item for item in part if item.number >= self.acked]
        self._waiting.extend(waiting)
        self.weight += sum(map(self._weight_of, waiting))

    def _weight_of(self, item: Item) -> int:
        return self._weigh(item.location, item.size)
