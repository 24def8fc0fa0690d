"""The number of a flow's collect tasks: given by its text or discovery task, else computed from its
partitions and nodes. A computed number is kept until it is far off, so that partitions are rarely
reassigned; leaving nodes never lower it."""

from __future__ import annotations

from flumeng.config import TaskRange

SLOTS_A_TASK = 16
PARTITIONS_A_LANE = 8
"""A lane of objects counts as this many partitions."""
PARTITIONS_AT_MOST = 5_000
"""The most partitions of a task, which acks all in one transaction of at most 1 MiB."""


def given_tasks(option: int | TaskRange | None, proposed: int, planned: int) -> int | None:
    """Return the flow's ``option``; for a range the proposed, else planned, number within it."""
    if isinstance(option, TaskRange):
        return option.clamp(proposed or planned)
    return option


def task_count(given: int | None, planned: int, partitions: int, slots: float, nodes: int) -> int:
    """``slots``: the weight of all partitions; ``nodes``: how many live nodes may collect."""
    least = max(1, -(-partitions // PARTITIONS_AT_MOST))
    if given is not None:
        return max(given, _kept(planned, least, partitions))
    by_weight = max(least, int(slots) // SLOTS_A_TASK)
    target = max(least, min(by_weight, nodes))
    if not planned or planned < least or target >= 2 * planned:
        return target
    return by_weight if 4 * by_weight <= planned else planned


def _kept(planned: int, least: int, partitions: int) -> int:
    """Return ``planned`` while tasks stay half full, else a lower number; at least ``least``."""
    return (
        least
        if least >= planned
        else min(planned, max(least, -(-2 * partitions // PARTITIONS_AT_MOST)))
    )
