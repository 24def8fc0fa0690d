"""The lanes of a queue: what waits in each, and which one gets the next object, in the order
listed. Objects weigh what reading them costs (``contents``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import takewhile

from flumeng.connectors.objects.contents import weight
from flumeng.connectors.objects.formats import cuttable
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.pages import Listed
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item

Weigh = Callable[[str, int], int]
"""The weight of an object, by its location and bytes."""


def alike(location: str, size: int) -> int:
    """The weight of items that are no objects."""
    del location, size
    return 1


def weigh(source: ObjectsSource) -> Weigh:
    in_parts = cuttable(source)
    return lambda location, size: weight(size, cuttable=in_parts(location))


def spread(listed: Iterable[Listed], waiting: Mapping[str, int], weigh: Weigh) -> list[str]:
    """The lane of each object: the first one with the least ``waiting`` weight."""
    heap = [(least, place, lane) for place, (lane, least) in enumerate(waiting.items())]
    heapify(heap)
    lanes = []
    for one in listed:
        least, place, lane = heap[0]
        lanes.append(lane)
        heapreplace(heap, (least + weigh(one.location, one.size), place, lane))
    return lanes


class LaneState:
    """A lane in memory, for the task that writes it: consecutive ``segments``, and the ``next``
    number.

    All below ``acked`` is acked. ``kept`` counts the items; ``weight`` is that of the unacked ones.
    An append never iterates over waiting items.
    """

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
        """All below ``number`` is acked. After a reset of the lane it is lower than before."""
        if number < self.acked:
            self._waiting.clear()
            self.acked = self.weight = 0
            self._wait([one for part in self.segments for one in part])
        self.acked = number
        while self._waiting and self._waiting[0].number < number:
            self.weight -= self._weight_of(self._waiting.popleft())

    def remove(self, part: tuple[Item, ...]) -> None:
        self.segments.remove(part)
        self.kept -= len(part)

    def bytes_from(self, offset: int) -> int:
        """Thread-safe."""
        return items.bytes_from((one for part in list(self.segments) for one in part), offset)

    def done(self) -> list[tuple[Item, ...]]:
        """The segments that are acked whole."""
        return [*takewhile(lambda part: part[-1].number < self.acked, self.segments)]

    def _wait(self, part: Sequence[Item]) -> None:
        waiting = [one for one in part if one.number >= self.acked]
        self._waiting.extend(waiting)
        self.weight += sum(map(self._weight_of, waiting))

    def _weight_of(self, item: Item) -> int:
        return self._weigh(item.location, item.size)
