"""The segments of one journal, oldest first: the last is active, the others are sealed. One thread
changes the chain, any thread reads it: the tuple is replaced, never changed in place."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

from flumeng.journal.log.errors import BelowFloorError
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.segment import Segment, Window

MOST_SIZES = 16


class Chain:
    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = tuple(segments)
        self._sealed_bytes = sum(part.length for part in self._segments[:-1])

    @property
    def floor(self) -> int:
        return self._segments[0].base

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def bytes(self) -> int:
        return self._sealed_bytes + self.active.length

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """The base and the bytes of each segment; in a long chain several are taken together."""
        each = -(-len(self._segments) // MOST_SIZES)
        parts = [self._segments[i : i + each] for i in range(0, len(self._segments), each)]
        return tuple((some[0].base, sum(part.length for part in some)) for some in parts)

    def add(self, fresh: Segment) -> None:
        self._sealed_bytes += self.active.length
        self._segments = (*self._segments, fresh)

    def acked(self, ack: int) -> int:
        """Return how many of the oldest sealed segments hold only events below ``ack``."""
        ends = (after.base for after in self._segments[1:])
        return sum(1 for _ in itertools.takewhile(lambda end: end <= ack, ends))

    def expired(self, ack: int, limits: Limits) -> int:
        parts = self._segments[: self.acked(ack)]
        now = time.time()
        return limits.expired(
            [part.length for part in parts], lambda n: now - parts[n].path.stat().st_mtime
        )

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments

    def at(self, number: int) -> Segment:
        return self._segments[number]

    def drop(self, count: int) -> tuple[Segment, ...]:
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._sealed_bytes -= sum(part.length for part in gone)
        return gone

    def windows(self, start: int, end: int) -> Iterator[Window]:
        """Yield windows of the frames with seqs [start, end), all of which must be written. Raises
        BelowFloorError when ``start`` was trimmed, else as ``Segment.windows``."""
        segments = self._segments
        if start < segments[0].base:
            raise BelowFloorError(
                f"{segments[0].path.parent}: seq {start} is gone, the first is {segments[0].base}"
            )
        ends = [after.base for after in segments[1:]] + [end]
        for part, part_end in zip(segments, ends, strict=True):
            if start < part_end and part.base < end:
                yield from part.windows(max(start, part.base), min(end, part_end))

    def check(self, *, sound: bool) -> None:
        """Assert the invariants; in a ``sound`` journal also check the lengths of the files."""
        bases = [part.base for part in self._segments]
        assert bases == sorted(set(bases))
        assert self._sealed_bytes == sum(part.length for part in self._segments[:-1])
        for part, successor in itertools.pairwise(self._segments):
            assert successor.header.previous == part.link
        if sound:
            for part in self._segments:
                assert part.path.stat().st_size == part.length
