"""Pauses between a stage's attempts on a server; after that the loop repeats the batch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from flumeng.errors import UnavailableError

FIRST_SECONDS, LONGEST_SECONDS = 0.2, 5.0


class Backoff:
    """Exponential, with jitter, for ``seconds`` from the first pause on, or from the first one
    after something was taken. For one thread.

    ``patience_seconds`` are instead of that when they are given, and count from the beginning, or
    from when something was taken: so of a frozen server one answer is waited for and not two.
    ``clock`` gives seconds that only grow.
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
        self.progressed()

    def progressed(self) -> None:
        """The server has taken something: it is slow, and not away."""
        self._next = FIRST_SECONDS
        self._until: float | None = None
        if self._patience_seconds is not None:
            self._until = self._clock() + self._patience_seconds

    def pause(self, error: UnavailableError, *, least_seconds: float = 0.0) -> None:
        """Raises ``error`` when the time is over, or would be after the pause."""
        now = self._clock()
        if self._until is None:
            self._until = now + self._seconds
        pause = max(least_seconds, self._next * random.uniform(0.5, 1.5))
        if now + pause > self._until:
            raise error
        self._sleep(pause)
        self._next = min(2 * self._next, LONGEST_SECONDS)
