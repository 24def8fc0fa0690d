"""The written events of lanes, where the target does not know batches by number.

Where a flow delivers exactly once, its files are staged, and become visible with the commit record
that is written with their acks. Else they are visible before that, perhaps more than once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

Events = Mapping[str, Iterable[int]]
"""Partition -> the offsets of events of it."""


class Output:
    def __init__(self) -> None:
        self._times: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._staged: dict[str, Events] = {}

    def show(self, events: Events) -> None:
        for partition, offsets in events.items():
            self._times[partition].update(offsets)

    def stage(self, commit: str, events: Events) -> None:
        self._staged[commit] = events

    def commit(self, commit: str) -> None:
        """The batch's record is written."""
        self.show(self._staged.pop(commit, {}))

    def times(self, partition: str, offset: int) -> int:
        return self._times[partition][offset]
