"""Backoff within a stage that writes to a server. The driver learns of errors only when the stage
ends, so the stage gives up early on a server that accepts nothing; the batch is then repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from flumeng.platform.errors import UnavailableError

FIRST_SECONDS, LONGEST_SECONDS = 0.2, 5.0
FRESH_SECONDS = 2.0
"""Time limit while a server has accepted no event of a split: the stage occupies a Spark core."""

CONNECT_SECONDS = 5.0
"""Time limit of a connection attempt: TCP has sent three SYNs by then."""


class Backoff:
    """Exponential backoff with jitter. For one thread.

    Until the server accepts something, attempts end after FRESH_SECONDS, or later after a pause
    that the server requested, but within ``seconds``. Afterwards they end ``seconds`` after the
    first pause since the last progress. With ``patience_seconds``, they always end
    ``patience_seconds`` after the start or the last progress.
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
        self._next = FIRST_SECONDS
        self._until = None
        if self._patience_seconds is not None:
            self._until = self._clock() + self._patience_seconds

    def pause(self, error: UnavailableError, *, least_seconds: float = 0.0) -> None:
        """Sleep, at least for ``least_seconds``, which the server requested. Raises ``error`` when
        the sleep would end after the deadline."""
        now = self._clock()
        if self._until is None:
            self._until = now + self._seconds
        pause = max(least_seconds, self._next * random.uniform(0.5, 1.5))
        if least_seconds:  # the server is up
            self._until = max(self._until, min(now + pause + FRESH_SECONDS, self._most_until))
        if now + pause > self._until:
            raise error
        self._sleep(pause)
        self._next = min(2 * self._next, LONGEST_SECONDS)
