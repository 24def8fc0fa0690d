"""Finds the partitions of a replay: the bounded parts of its list."""

from __future__ import annotations

from collections.abc import Collection

from flumeng.connectors.api.finding import Before, Bounds, FinderBase, Findings, FindingTask, Offer
from flumeng.connectors.dead_letters.options import DeadLettersSource
from flumeng.control.zookeeper import Store


class DeadLettersFinder(FinderBase):
    """``Finder`` of a replay. The flow's options list all parts; no server is queried."""

    no_times = "a replay is read from earliest, latest or an offset, not from a time"

    def __init__(self, source: DeadLettersSource) -> None:
        self._source = source

    @classmethod
    def of(cls, options: DeadLettersSource, store: Store, task: FindingTask) -> DeadLettersFinder:
        del store, task  # the options have all information
        return cls(options)

    def find(self, before: Before) -> Findings:
        del before
        offers = {name: Offer(0, rows) for name, rows in self._source.partitions().items()}
        return Findings(offers, (f"dead letters {self._source.replay}",), bounded=True)

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        parts = self._source.partitions(partitions)
        return {name: Bounds(0, rows) for name, rows in parts.items()}

    def finished(self) -> None:
        from flumeng.connectors.dead_letters import replay_lists  # noqa: PLC0415  loads pyarrow, once a replay
        from flumeng.connectors.dead_letters.directory import DeadLetterDirectory  # noqa: PLC0415

        directory = DeadLetterDirectory(self._source.location)
        replay_lists.mark(directory, self._source.of, self._source.replay, replay_lists.DONE)
