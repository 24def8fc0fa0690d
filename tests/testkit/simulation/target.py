"""A modelled target that knows batches by number, as a table in a database does."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.testkit.simulation.output import Events


class Target:
    """A target with a highest batch number for each series; it takes each batch once.

    Events in ``excused`` may be there twice: their batch was given up.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._times: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._excused: defaultdict[str, set[int]] = defaultdict(set)

    def take(self, series: str, number: int, events: Events) -> None:
        if self._numbers.get(series, 0) >= number:
            return
        self._numbers[series] = number
        for partition, offsets in events.items():
            self._times[partition].update(offsets)

    def times(self, partition: str, offset: int) -> int:
        return self._times[partition][offset]

    def excuse(self, journal: str, start: int, end: int) -> None:
        self._excused[journal].update(range(start, end))

    def wrong(self, journal: str, start: int, end: int) -> str:
        """The error in these acked events, each of which must be there once."""
        times, excused = self._times[journal], self._excused[journal]
        for seq in range(start, end):
            if times[seq] != 1 and (seq not in excused or not times[seq]):
                return f"{journal} {seq} is acked, and {times[seq]} times in the target"
        return ""

    def twice(self, journal: str, start: int, end: int) -> str:
        times, excused = self._times[journal], self._excused[journal]
        for seq in range(start, end):
            if times[seq] > 1 and seq not in excused:
                return f"{journal} {seq} is {times[seq]} times in the target"
        return ""
