"""Pauses between the attempts of a stage on a server; after that the loop repeats the batch.

The driver learns of an error only when the stage ends. So a server that has accepted nothing of a
split is given up early: the task then reports ``retrying`` with the error.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from flumeng.platform.errors import UnavailableError

FIRST_SECONDS, LONGEST_SECONDS = 0.2, 5.0
FRESH_SECONDS = 2.0
"""How long a server is tried that has accepted nothing of a split. The stage occupies a core of
Spark meanwhile."""

CONNECT_SECONDS = 5.0
"""Time limit of a connection attempt: TCP has sent three SYNs by then."""


class Backoff:
    """Exponential backoff with jitter. For one thread.

    Until the server accepts something, attempts end after FRESH_SECONDS, or a pause that it asked
    for, and ``seconds`` at most. Later they end ``seconds`` after the first pause since the last
    progress. With ``patience_seconds`` they end that long after the start or the last progress.
    """

    def __init__(
        self,
        seconds: float,
        patience_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._sleep = sleep
        self._next = FIRST_SECONDS
        fresh = min(seconds, FRESH_SECONDS) if patience_seconds is None else patience_seconds
        self._until: float | None = clock() + fresh
        self._most_until = clock() + min(seconds, patience_seconds or seconds)

    def progressed(self) -> None:
        """The server has accepted something: it is slow, but up."""
        self._next = FIRST_SECONDS
        self._until = None
        if self._patience_seconds is not None:
            self._until = self._clock() + self._patience_seconds

    def pause(self, error: UnavailableError, *, least_seconds: float = 0.0) -> None:
        """Raises ``error`` when the time is over, or would be after the pause. ``least_seconds``:
        the pause that the server asks for."""
        now = self._clock()
        if self._until is None:
            self._until = now + self._seconds
        pause = max(least_seconds, self._next * random.uniform(0.5, 1.5))
        if least_seconds:  # it is there
            self._until = max(self._until, min(now + pause + FRESH_SECONDS, self._most_until))
        if now + pause > self._until:
            raise error
        self._sleep(pause)
        self._next = min(2 * self._next, LONGEST_SECONDS)
