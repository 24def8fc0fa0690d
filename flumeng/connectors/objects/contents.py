"""The items between offsets of a lane, weighed by their bytes.

The events of an object are unknown before it is read, so they are guessed from its bytes. The guess
never changes: a repeated batch is cut as before.
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
"""Bytes an event: of a line, and of an item that is read whole, mostly a compressed one."""
WHOLE_EVENT_BYTES = 20
ITEM_EVENTS = 50
"""The cost of opening an object, in events."""

Cuttable = Callable[[str], bool]


def weight(size: int, *, cuttable: bool) -> int:
    """The estimated events of an item, and the cost of opening it."""
    return ITEM_EVENTS + -(-size // (EVENT_BYTES if cuttable else WHOLE_EVENT_BYTES))


class LaneContents:
    """See ``Contents``. ``lane``: the consecutive items from the first unacked one on. ``until``:
    number of an item -> the position at which reading it ends, which does not change its weight."""

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
        """The weight before each item, and before the end."""
        return list(accumulate(map(self._weight, self._items), initial=0))

    def _weight(self, item: Item) -> int:
        return weight(item.size, cuttable=self._cuttable(item.location))

    def _below(self, offset: int) -> int:
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
