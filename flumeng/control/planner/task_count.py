"""The number of a flow's collect tasks: from its author or discovery task, else from its partitions
and nodes. A computed number is kept until it is far off, so that partitions are rarely reassigned;
leaving nodes never lower it."""

from __future__ import annotations

from flumeng.config import TaskRange

SLOTS_A_TASK = 16
PARTITIONS_A_LANE = 8
"""A lane of objects counts as so many partitions."""
PARTITIONS_AT_MOST = 5_000
"""A task acks all its partitions in one transaction of at most 1 MiB."""


def given_tasks(option: int | TaskRange | None, proposed: int, planned: int) -> int | None:
    """The number from the flow's text (``option``) or, within a range, its discovery task."""
    if isinstance(option, TaskRange):
        return option.clamp(proposed or planned)
    return option


def task_count(given: int | None, planned: int, partitions: int, slots: float, nodes: int) -> int:
    """``slots``: the partitions' weight; ``nodes``: the number of live nodes that may collect."""
    least = max(1, -(-partitions // PARTITIONS_AT_MOST))
    if given is not None:
        return max(given, _kept(planned, least, partitions))
    by_weight = max(least, int(slots) // SLOTS_A_TASK)
    target = max(least, min(by_weight, nodes))
    if not planned or planned < least or target >= 2 * planned:
        return target
    return by_weight if 4 * by_weight <= planned else planned


def _kept(planned: int, least: int, partitions: int) -> int:
    """The ``planned`` number stays while tasks are at least half full."""
    return (
        least
        if least >= planned
        else min(planned, max(least, -(-2 * partitions // PARTITIONS_AT_MOST)))
    )
