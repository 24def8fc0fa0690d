"""A task that another node owns, while this one stands by: all is ready, nothing is written.

What is made ready is what takes long after a failure: Spark runs, the flow's pipeline is planned,
and the servers of its partitions say already how far those reach. Nothing about correctness rests
on it: who takes the task over claims it as everybody does.
"""

from __future__ import annotations

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.partitions import Partitions
from flumeng.agent.collector.work import Pipeline
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import Store

FOLLOW_SECONDS = 10.0
"""So often the acks are read: they only tell where the next owner would begin."""


class Standby:
    """For one assignment. ``pipeline`` is for whoever takes over with the same text."""

    def __init__(
        self, assignment: Assignment, pipeline: Pipeline, store: Store, partitions: Partitions
    ) -> None:
        self.assignment = assignment
        self.pipeline = pipeline
        self._store = store
        self._partitions = partitions
        partitions.open(pipeline.spec)

    def look(self) -> str | None:
        """Follow the acks; gives what would keep the task from being read here, if anything.

        Raises UnavailableError.
        """
        names = sorted(self.assignment.partitions)
        acks = self._store.read_many([ack_path(self.assignment.flow, name) for name in names])
        found = zip(names, acks, strict=True)
        self._partitions.of({name: ack.value.offset for name, ack in found if ack is not None})
        return self._partitions.trouble or self.pipeline.trouble or None

    def fits(self, assignment: Assignment) -> bool:
        """Whether its pipeline is the one of ``assignment``."""
        mine = self.assignment
        return (mine.key, mine.revision, mine.spec) == (
            assignment.key,
            assignment.revision,
            assignment.spec,
        )
