"""Multiline events: the ranges of a batch, and its acks. A batch begins at the oldest line that
must be reread. A partition's last event waits for more lines for the flow's timeout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.batch import Batch
from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.outcome import BatchFailedError
from flumeng.agent.collector.ranges import MOST
from flumeng.config.multiline import PIECE_SECONDS, Multiline
from flumeng.connectors.api.ranged import Progress, Range, Reach


class LineJoins:
    def __init__(self, multiline: Multiline, acks: Acks, clock: Callable[[], float]) -> None:
        self._timeout_seconds = multiline.timeout_seconds
        self._finished: set[str] | None = None if multiline.container is None else set()
        """Partitions without an unfinished container message."""
        self._acks = acks
        self._clock = clock
        self._still: dict[str, tuple[int, float]] = {}
        """Partition -> its end, and the time since which the end has not moved."""

    def note(self, reached: Mapping[str, Reach]) -> None:
        now = self._clock()
        for name, reach in reached.items():
            if self._still.get(name, (-1, now))[0] != reach.safe:
                self._still[name] = reach.safe, now

    def quiet_seconds(
        self, reached: Mapping[str, Reach], planned: Mapping[str, int]
    ) -> dict[str, float]:
        """Return the seconds to wait for more lines, for fully read partitions with open events."""
        return {
            name: 0.0 if reach.closed else max(0.0, self._left_seconds(name))
            for name, reach in reached.items()
            if self._acks.emitted[name] < planned[name] >= reach.safe and not reach.held
        }

    def ranges(
        self,
        fresh: Sequence[Range],
        reached: Mapping[str, Reach],
        quiet: Mapping[str, float],
        replayed_below: Mapping[str, int],
    ) -> tuple[Range, ...]:
        """Return ``fresh`` ranges extended back to their acks, and ranges whose wait is over."""
        ends = {piece.partition: piece.end for piece in fresh}
        over = (name for name, left in quiet.items() if left == 0 and name not in ends)
        ends |= {name: reached[name].safe for name in over}
        ranges = []
        for name, end in sorted(ends.items())[:MOST]:
            reach, start = reached[name], self._acks.offsets[name]
            still = reach.closed or self._left_seconds(name) <= 0
            flush = still and end == reach.safe and not reach.held
            replayed = start < replayed_below.get(name, 0)
            emitted, sure = self._acks.emitted[name], self._acks.sure[name]
            ranges.append(Range(name, start, end, replayed, emitted, flush, sure=sure))
        return tuple(ranges)

    def _left_seconds(self, name: str) -> float:
        seconds = self._timeout_seconds
        if self._finished is not None and name not in self._finished:
            seconds = max(seconds, PIECE_SECONDS)
        return self._still[name][1] + seconds - self._clock()

    def progress_of(self, batch: Batch, ends: Mapping[str, JoinedRange]) -> Mapping[str, Progress]:
        """Return the new acks of ``batch``, and count its closed events. Raises BatchFailedError
        when a range has sent no report."""
        _require_all(batch, ends)
        if self._finished is not None:
            self._finished -= ends.keys()
            self._finished |= {name for name, report in ends.items() if not report.unfinished}
        return {name: report.progress for name, report in ends.items()}


def _require_all(batch: Batch, ends: Mapping[str, JoinedRange]) -> None:
    for piece in batch.ranges:
        if piece.partition not in ends:
            raise BatchFailedError(
                f"the lines of {piece.partition} were not read to the end: a statement that leaves "
                "events unread (LIMIT, WHERE false) cannot be used with multiline"
            )
        batch.lines_closed.update(ends[piece.partition].closed)
