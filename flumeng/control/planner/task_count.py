"""How many collect tasks a flow has: as many as its author says, as its discovery task proposes, or
as its partitions and nodes ask for.

A lane of objects is much more work than an idle journal, and counts as several partitions, so that
by default a task has two; what nodes have room for is counted without that.

A number that nobody gave is kept until it is far off, so that partitions that come and go do not
shuffle all others each time; nodes that go never make it smaller. The number that is kept is that
of the planned tasks: nothing else is remembered.
"""

from __future__ import annotations

from flumeng.config import TaskRange

SLOTS_A_TASK = 16
PARTITIONS_A_LANE = 8
"""So many partitions a lane of objects counts as."""
PARTITIONS_AT_MOST = 5_000
"""A task acks all of its partitions in one transaction, and ZooKeeper takes 1 MiB at most."""


def given_tasks(wanted: int | TaskRange | None, proposed: int, planned: int) -> int | None:
    """The number that is given: by the flow's author, or within a range by its discovery task.

    Until that has proposed one, the ``planned`` tasks stay as far as the range allows.
    """
    if isinstance(wanted, TaskRange):
        return wanted.clamp(proposed or planned)
    return wanted


def task_count(given: int | None, planned: int, partitions: int, slots: float, nodes: int) -> int:
    """How many tasks are to read the flow's ``partitions``, of which ``planned`` are there now.

    ``slots`` is what the partitions weigh together; ``nodes`` is how many live nodes may collect.
    """
    least = max(1, -(-partitions // PARTITIONS_AT_MOST))
    if given is not None:
        return max(given, _kept(planned, least, partitions))
    by_weight = max(least, int(slots) // SLOTS_A_TASK)
    wanted = max(least, min(by_weight, nodes))
    if not planned or planned < least or wanted >= 2 * planned:
        return wanted
    return by_weight if 4 * by_weight <= planned else planned


def _kept(planned: int, least: int, partitions: int) -> int:
    """The least number of tasks; a larger one stays while the tasks are at least half full."""
    return (
        least
        if least >= planned
        else min(planned, max(least, -(-2 * partitions // PARTITIONS_AT_MOST)))
    )
