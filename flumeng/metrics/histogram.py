"""A histogram that a process keeps while it works, whether somebody scrapes it or not. Light."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
EVENTS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 2e5, 5e5, 1e6, 2e6)


class Histogram:
    """Counts values by ``bounds``, which grow. Any thread may add."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """How many values lie at or below each bound, the last one ``+Inf``; and their sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip([*map(repr, self._bounds), "+Inf"], counts, strict=True):
            below += count
            buckets.append((bound, below))
        return buckets, total
