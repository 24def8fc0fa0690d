"""Large records in shards: znodes below the record's own. The record contains their count. Each
transaction that changes a shard also writes the record, so its version covers all. A larger change
takes several steps. An item's key determines its shard."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from flumeng.control.zookeeper import ABSENT, ANY, Put, Write
from zkschema.records import Record
from zkschema.table import ZPath

T = TypeVar("T")


def shard_of(key: str, count: int) -> int:
    return zlib.crc32(key.encode()) % count


def split(items: Mapping[str, T], count: int) -> list[dict[str, T]]:
    shards: list[dict[str, T]] = [{} for _ in range(count)]
    for key, item in items.items():
        shards[shard_of(key, count)][key] = item
    return shards


def changed(before: Sequence[T], after: Sequence[T]) -> list[int]:
    """Return the numbers of changed shards."""
    pairs = enumerate(zip(before, after, strict=True))
    return [number for number, (old, new) in pairs if old is not new and old != new]


def shard_writes(
    path: Callable[[str], ZPath[Record]],
    record: Callable[[T], Record],
    before: Sequence[T],
    after: Sequence[T],
) -> list[Write]:
    """Return the writes of changed shards, of all if ``before`` is empty. ``path`` is by number."""
    if not before:
        return [Put(path(str(n)), record(shard), ABSENT) for n, shard in enumerate(after)]
    return [Put(path(str(n)), record(after[n]), ANY) for n in changed(before, after)]


def portions(
    numbers: Iterable[int], cost: Callable[[int], int], room_bytes: int
) -> Iterator[list[int]]:
    """Yield the shards in order, in portions of at most ``room_bytes`` or of one shard."""
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
