"""Splits a large change of a plan into legal steps that each fit into a transaction. Partitions are
first taken from tasks, so that no partition is ever in two tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flumeng.control.snapshot import shards
from flumeng.control.snapshot.task_map import Bucket, Tasks
from zkschema.records import PlannedTask

ITEM_BYTES = 1000
"""Upper bound of a task or partition of a plan in a transaction, with its checks."""
Cost = Callable[[int, Bucket, Bucket], int]
"""Returns the bytes of a bucket's transaction from its number and its tasks before and after."""


def steps(before: Tasks, after: Tasks, room_bytes: int, cost: Cost) -> list[Tasks]:
    """Return the tasks after each step; the last is ``after``."""
    if len(after.buckets) == 1:
        small = _items(after) * ITEM_BYTES <= room_bytes
        if small or cost(0, dict(before.items()), after.buckets[0]) <= room_bytes:
            return [after]
        after = after.spread()
    spread = before.spread()
    cost = _cached(cost)
    written = _changed(spread, after) if spread is before else range(len(after.buckets))
    if sum(cost(n, spread.buckets[n], after.buckets[n]) for n in written) <= room_bytes:
        return [after]
    steps = [] if spread is before else [spread]
    current = spread
    for target in (spread.changed(_takes(spread, after)), after):
        for portion in _portions(current, target, room_bytes, cost):
            buckets = list(current.buckets)
            for number in portion:
                buckets[number] = target.buckets[number]
            current = Tasks(buckets)
            steps.append(current)
    return steps


def _cached(cost: Cost) -> Cost:
    """Cache the cost of each bucket by ``id``; the caller has to keep all buckets alive."""
    cache: dict[tuple[int, int, int], int] = {}

    def weigh(number: int, old: Bucket, new: Bucket) -> int:
        key = number, id(old), id(new)
        if key not in cache:
            cache[key] = cost(number, old, new)
        return cache[key]

    return weigh


def _items(tasks: Tasks) -> int:
    return len(tasks) + sum(len(task.partitions) for task in tasks.values())


def _takes(before: Tasks, after: Tasks) -> dict[str, PlannedTask]:
    """Return the tasks that lose partitions, with only the remaining ones."""
    if not before:
        return {}
    return {
        name: replace(old, partitions=tuple(p for p in old.partitions if p in kept))
        for name, old, new in after.differences(before)
        if old is not None
        for kept in (set(new.partitions if new else ()),)
        if not kept.issuperset(old.partitions)
    }


def _portions(before: Tasks, after: Tasks, room_bytes: int, cost: Cost) -> list[list[int]]:
    def of(number: int) -> int:
        return cost(number, before.buckets[number], after.buckets[number])

    return list(shards.portions(_changed(before, after), of, room_bytes))


def _changed(before: Tasks, after: Tasks) -> Sequence[int]:
    pairs = enumerate(zip(before.buckets, after.buckets, strict=True))
    return [number for number, (old, new) in pairs if old is not new]
