"""Exponential back-off."""

from __future__ import annotations

import asyncio
import contextlib
from math import inf

FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0


class Backoff:
    """Waits that double, up to ``most_seconds``; ``reset`` starts over with the first."""

    def __init__(self, first_seconds: float, most_seconds: float) -> None:
        self._first, self._most = first_seconds, most_seconds
        self._next = first_seconds

    def next(self) -> float:
        seconds = self._next
        self._next = min(2 * seconds, self._most)
        return seconds

    def reset(self) -> None:
        self._next = self._first

    async def wait(self, wake: asyncio.Event) -> None:
        """Sleep until the next attempt is due or ``wake`` is set."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(wake.wait(), self.next())


class RetryTimer:
    """The time of the next attempt on a failed disk; ``begin`` each one. Waits start over after a
    success, or an attempt that begins MOST_SECONDS too late. ``now``: monotonic seconds."""

    def __init__(self) -> None:
        self._backoff = Backoff(FIRST_SECONDS, MOST_SECONDS)
        self._until = -inf

    def is_due(self, now: float) -> bool:
        return now >= self._until

    def begin(self, now: float) -> None:
        if now - self._until > MOST_SECONDS:
            self._backoff.reset()
        self._until = now + self._backoff.next()

    def succeeded(self) -> None:
        self._backoff.reset()
