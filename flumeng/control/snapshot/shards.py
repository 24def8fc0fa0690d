"""Large records lie in shards: znodes below the record's own, which says how many there are.

The record itself is written in every transaction that changes a shard, so that its version stands
for the whole. A change that does not fit into one transaction is written in steps of some shards
each. An item's shard follows from its key alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from flumeng.control.zookeeper import ABSENT, ANY, Put, Write
from zkschema.records import Record
from zkschema.table import ZPath

T = TypeVar("T")


def shard_of(key: str, count: int) -> int:
    """The number of the shard that has the item, of so many."""
    return zlib.crc32(key.encode()) % count


def split(items: Mapping[str, T], count: int) -> list[dict[str, T]]:
    """The items in so many shards."""
    shards: list[dict[str, T]] = [{} for _ in range(count)]
    for key, item in items.items():
        shards[shard_of(key, count)][key] = item
    return shards


def changed(before: Sequence[T], after: Sequence[T]) -> list[int]:
    """The numbers of the shards that are not as they were."""
    pairs = enumerate(zip(before, after, strict=True))
    return [number for number, (old, new) in pairs if old is not new and old != new]


def shard_writes(
    path: Callable[[str], ZPath[Record]],
    record: Callable[[T], Record],
    before: Sequence[T],
    after: Sequence[T],
) -> list[Write]:
    """Writes the shards that are not as they were. All are created when there were none ``before``.

    ``path`` gives a shard's znode by its number, ``record`` its record.
    """
    if not before:
        return [Put(path(str(n)), record(shard), ABSENT) for n, shard in enumerate(after)]
    return [Put(path(str(n)), record(after[n]), ANY) for n in changed(before, after)]


def portions(
    numbers: Iterable[int], cost: Callable[[int], int], room_bytes: int
) -> Iterator[list[int]]:
    """The shards in order, in portions that cost at most ``room_bytes``; each has one at least."""
    portion: list[int] = []
    left = room_bytes
    for number in numbers:
        bytes_needed = cost(number)
        if portion and bytes_needed > left:
            yield portion
            portion, left = [], room_bytes
        portion.append(number)
        left -= bytes_needed
    if portion:
        yield portion
