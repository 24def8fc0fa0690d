"""Items of a lane of a work queue. An offset is an item's number and a position in the item: rows,
or decompressed bytes before a line. So offsets grow in reading order, one number is a lane's ack,
and an event has the same offset each time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flumeng.control.snapshot.partitions import POSITION_BITS
from flumeng.platform.errors import CorruptError
from zkschema.records import QueueSegment

MOST_POSITION = (1 << POSITION_BITS) - 1
"""The largest readable item, in bytes (256 GiB) or rows."""
FULL_ITEMS = (1 << (63 - POSITION_BITS)) - (1 << 16)
"""A lane with so many items is full and gets few more: offsets must not exceed 63 bits."""


@dataclass(frozen=True)
class Item:
    """An object to read, as listed. ``modified_us``: microseconds since the epoch. ``tag``: an ETag
    or generation, or "". Positions from ``first`` to before ``until`` (None: the end) are read."""

    number: int
    location: str
    size: int
    modified_us: int
    tag: str = ""
    first: int = 0
    until: int | None = None

    @property
    def start(self) -> int:
        return offset_of(self.number)

    @property
    def begin(self) -> int:
        return offset_of(self.number, self.first)

    @property
    def end(self) -> int:
        return offset_of(self.number + 1)


def offset_of(number: int, position: int = 0) -> int:
    return number << POSITION_BITS | position


def number_of(offset: int) -> int:
    return offset >> POSITION_BITS


def position_of(offset: int) -> int:
    return offset & MOST_POSITION


def bytes_from(lane: Iterable[Item], offset: int) -> int:
    """Return the bytes of these items after the offset; exact only for uncompressed lines."""
    number, position = number_of(offset), position_of(offset)
    left = (item for item in lane if item.number >= number)
    return sum(
        item.size - (min(position, item.size) if item.number == number else 0) for item in left
    )


def encode(items: Iterable[Item]) -> str:
    return json.dumps(
        [[i.number, i.location, i.size, i.modified_us, i.tag, i.first, i.until] for i in items],
        separators=(",", ":"),
    )


def decode(address: str) -> list[Item]:
    """Decode the items of an ``encode`` text. Raises CorruptError for any other text."""
    try:
        return [Item(*fields) for fields in json.loads(address)]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"invalid list of items: {address[:200]}") from error


def of_segment(segment: QueueSegment) -> list[Item]:
    """Return the items of a segment. Raises CorruptError for columns of unequal length."""
    count = len(segment.locations)
    starts = segment.starts or (0,) * count
    columns = segment.locations, segment.sizes, segment.modified, segment.tags, starts
    if any(len(column) != count for column in columns):
        raise CorruptError(f"queue segment {segment.first} has columns of unequal length")
    numbers = range(segment.first, segment.first + count)
    return [Item(*fields) for fields in zip(numbers, *columns, strict=True)]


def segment_of(items: Sequence[Item]) -> QueueSegment:
    """Return the segment of these items (at least one), whose numbers are consecutive."""
    return QueueSegment(
        first=items[0].number,
        locations=tuple(item.location for item in items),
        sizes=tuple(item.size for item in items),
        modified=tuple(item.modified_us for item in items),
        tags=tuple(item.tag for item in items),
        starts=tuple(item.first for item in items) if any(item.first for item in items) else (),
    )
