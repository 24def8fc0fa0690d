"""A large change of a plan, in steps that each fit into one transaction and are each legal.

What loses partitions comes first, so that no partition is ever in two tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flumeng.state.task_map import Tasks
from zkschema.records import PlannedTask

STEP_BYTES = 1_200_000
TASK_BYTES = 160
PARTITION_BYTES = 40


def steps(before: Tasks, after: Tasks, step_bytes: int = STEP_BYTES) -> list[Tasks]:
    """The tasks after each step; the last is ``after``. One step, when all of it fits.

    ``step_bytes`` counts the buckets that a step writes, estimated before they are gzipped, which
    makes them about a fourth.
    """
    if len(after.buckets) == 1:
        return [after]
    before = before.spread()
    gives = list(_parts(before, after, step_bytes))
    if len(gives) < 2:
        return [after]
    taken = before.changed(_takes(before, after))
    found = []
    current = before
    for target, parts in ((taken, _parts(before, taken, step_bytes)), (after, gives)):
        for part in parts:
            buckets = list(current.buckets)
            for number in part:
                buckets[number] = target.buckets[number]
            current = Tasks(buckets)
            found.append(current)
    return found


def _takes(before: Tasks, after: Tasks) -> dict[str, PlannedTask]:
    """The tasks that lose partitions, with what they keep."""
    if not before:
        return {}
    return {
        name: replace(old, partitions=tuple(p for p in old.partitions if p in kept))
        for name, old, new in after.differences(before)
        if old is not None
        for kept in (set(new.partitions if new else ()),)
        if not kept.issuperset(old.partitions)
    }


def _parts(before: Tasks, after: Tasks, step_bytes: int) -> Iterator[list[int]]:
    """The numbers of the buckets that change, in parts that are not too much to write at once."""
    part: list[int] = []
    room = step_bytes
    for number, (old, new) in enumerate(zip(before.buckets, after.buckets, strict=True)):
        if old is new:
            continue
        partitions = sum([len(task.partitions) for task in new.values()])
        size = TASK_BYTES * max(len(old), len(new)) + PARTITION_BYTES * partitions
        if part and size > room:
            yield part
            part, room = [], step_bytes
        part.append(number)
        room -= size
    if part:
        yield part
