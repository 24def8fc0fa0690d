"""Remembers the progress of journals a minute ago, to detect a growing lag; without a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

AGO_SECONDS = 60.0
SAMPLE_SECONDS = 10.0


class ProgressSample(NamedTuple):
    at: float
    acked: int
    safe: int


class ProgressHistory:
    """Samples of the progress of any number of journals; not thread-safe."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[ProgressSample]] = {}

    def has(self, journal: str) -> bool:
        return journal in self._samples

    def add(self, journal: str, acked: int, safe: int, now: float) -> None:
        samples = self._samples.setdefault(journal, deque())
        last = samples[-1] if samples else None
        if last is None or (last[1:] != (acked, safe) and now - last.at >= SAMPLE_SECONDS):
            samples.append(ProgressSample(now, acked, safe))
        while len(samples) > 1 and samples[1].at <= now - AGO_SECONDS:
            samples.popleft()

    def minute_ago(self, journal: str, now: float) -> ProgressSample | None:
        """Return the progress a minute before ``now``; None for a journal first seen since then."""
        samples = self._samples.get(journal)
        if not samples or samples[0].at > now - AGO_SECONDS:
            return None
        return samples[0]

    def keep_only(self, journals: Collection[str]) -> None:
        for gone in self._samples.keys() - set(journals):
            del self._samples[gone]
