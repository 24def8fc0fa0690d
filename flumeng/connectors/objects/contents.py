"""What lies between offsets of a lane: items, which weigh as much as they have bytes.

How many events an object has nobody knows before it is read, so it is guessed from its bytes. The
guess is the same for all who ask, since batches that are repeated are cut as they were.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item

EVENT_BYTES = 200
"""Of a line, about; of an object that cannot be cut, which is compressed as a rule, a tenth."""
WHOLE_EVENT_BYTES = 20
ITEM_EVENTS = 50
"""To open an object takes as long as to read so many events, about."""

Cuttable = Callable[[str], bool]
"""Whether the item at a location may be read in parts."""


def weight(size: int, *, cuttable: bool) -> int:
    """How many events an item of so many bytes is, and what it costs to open it."""
    return ITEM_EVENTS + -(-size // (EVENT_BYTES if cuttable else WHOLE_EVENT_BYTES))


class LaneContents:
    """See ``Contents``. ``lane`` are its items in order, without a gap, from the first that is not
    acked on. ``until``: number of an item -> the position from which on it is not read. It weighs
    the same all the same: a batch that is repeated is cut as it was."""

    def __init__(
        self, lane: Sequence[Item], cuttable: Cuttable, until: Mapping[int, int] | None = None
    ) -> None:
        self._items = lane
        self._cuttable = cuttable
        self._until = until or {}

    def events(self, start: int, end: int) -> int:
        return max(1, self._below(end) - self._below(start)) if start < end else 0

    def cut(self, start: int, end: int, events: int) -> int:
        wanted = self._below(start) + max(1, events)
        place = bisect_right(self._borders, wanted) - 1
        if place >= len(self._items):
            return end
        item = self._items[place]
        if self._cuttable(item.location) and item.size:
            into = (wanted - self._borders[place] - ITEM_EVENTS) * EVENT_BYTES
            found = item.start + max(0, into) if into < item.size else item.end
        else:
            found = item.start
        if found <= start:  # not even its first item fits
            found = items.offset_of(items.number_of(start) + 1)
        return min(found, end)

    def address(self, start: int, end: int) -> str:
        first = items.number_of(start) - self._first
        last = items.number_of(end - 1) - self._first
        touched = self._items[max(0, first) : last + 1]
        return items.encode(
            replace(one, until=self._until[one.number]) if one.number in self._until else one
            for one in touched
        )

    @property
    def _first(self) -> int:
        return self._items[0].number if self._items else 0

    @cached_property
    def _borders(self) -> list[int]:
        """How much lies before each item, and before the end."""
        return list(accumulate(map(self._weight, self._items), initial=0))

    def _weight(self, item: Item) -> int:
        return weight(item.size, cuttable=self._cuttable(item.location))

    def _below(self, offset: int) -> int:
        """How much lies below the offset."""
        place = items.number_of(offset) - self._first
        if place < 0:
            return 0
        if place >= len(self._items):
            return self._borders[-1]
        item, position = self._items[place], items.position_of(offset)
        if not position:
            return self._borders[place]
        part = min(position, item.size)
        whole = self._weight(item)
        inside = ITEM_EVENTS + part // EVENT_BYTES if self._cuttable(item.location) else whole
        return self._borders[place] + min(inside, whole)
