"""A lane of a queue in memory, for the task that writes it.

Its counts follow each change: an append never goes through the items that wait already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from flumeng.connectors.objects.lanes import Weigh
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item


def alike(location: str, size: int) -> int:
    """The weight of items that are no objects."""
    del location, size
    return 1


class LaneState:
    """The items that are kept, in ``segments`` that follow each other; ``next`` is the number
    behind them.

    All below ``acked`` is acked. ``kept`` counts the items; ``weight`` is that of those that are
    not acked.
    """

    def __init__(self, next: int = 0, weigh: Weigh = alike) -> None:
        self.next = next
        self.acked = self.kept = self.weight = 0
        self.segments: deque[tuple[Item, ...]] = deque()
        self._weigh = weigh
        self._waiting: deque[Item] = deque()

    def append(self, part: Sequence[Item]) -> None:
        """A segment that follows."""
        self.segments.append(tuple(part))
        self.next = part[-1].number + 1
        self.kept += len(part)
        self._wait(part)

    def acknowledge(self, number: int) -> None:
        """All below the number is acked. A lane that was put back has acked less than before."""
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
        """How many bytes are to be read behind the offset. For any thread."""
        return items.bytes_from((one for part in list(self.segments) for one in part), offset)

    def done(self) -> list[tuple[Item, ...]]:
        """The segments of which everything is acked."""
        return [*takewhile(lambda part: part[-1].number < self.acked, self.segments)]

    def _wait(self, part: Sequence[Item]) -> None:
        waiting = [one for one in part if one.number >= self.acked]
        self._waiting.extend(waiting)
        self.weight += sum(map(self._weight_of, waiting))

    def _weight_of(self, item: Item) -> int:
        return self._weigh(item.location, item.size)
