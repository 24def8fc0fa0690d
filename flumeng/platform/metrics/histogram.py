"""A light histogram for use in hot paths."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
EVENTS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 2e5, 5e5, 1e6, 2e6)


FLOW_SECONDS = (0.05, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Few bounds, since there is a series for each bound and flow."""


class Counts(NamedTuple):
    """The number of values in each bucket, the last one above all bounds, and the sum of values."""

    by_bound: tuple[int, ...]
    total: float

    def since(self, before: Counts | None) -> Counts:
        """Return the growth since ``before``; all counts after a reset."""
        if before is None or sum(self.by_bound) < sum(before.by_bound):
            return self
        pairs = zip(self.by_bound, before.by_bound, strict=True)
        return Counts(tuple(now - then for now, then in pairs), self.total - before.total)


class Histogram:
    """Counts values by ascending ``bounds``. Thread-safe."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, value: float, times: int = 1) -> None:
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[bucket] += times
            self._sum += value * times

    def add_counts(self, counts: Counts) -> None:
        """Add the counts of another histogram with the same bounds."""
        with self._lock:
            pairs = zip(self._counts, counts.by_bound, strict=True)
            self._counts = [own + other for own, other in pairs]
            self._sum += counts.total

    @property
    def counts(self) -> Counts:
        with self._lock:
            return Counts(tuple(self._counts), self._sum)

    def like(self) -> Histogram:
        return Histogram(self._bounds)

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Return the count of values up to each bound, the last ``+Inf``, and the sum of values."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip([*map(repr, self._bounds), "+Inf"], counts, strict=True):
            below += count
            buckets.append((bound, below))
        return buckets, total
