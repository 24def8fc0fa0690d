"""Pauses between a stage's attempts on a server; after that the loop repeats the batch.

The driver learns of a stage's trouble only when the stage ends. So a server that has taken nothing
of a split is given up early: the task then reports ``retrying`` with that error.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from flumeng.platform.errors import UnavailableError

FIRST_SECONDS, LONGEST_SECONDS = 0.2, 5.0
FRESH_SECONDS = 2.0
"""How long a server that has taken nothing of a split is tried. The stage occupies a core of Spark
meanwhile, and the driver learns of the error only when the stage ends."""

CONNECT_SECONDS = 5.0
"""Time limit of a connection attempt. TCP has sent its SYN three times by then."""


class Backoff:
    """Exponential, with jitter. For one thread.

    Until the server has taken something, attempts end FRESH_SECONDS after the beginning, or after a
    pause that it asked for, and ``seconds`` after the beginning at most. Later they end ``seconds``
    after the first pause since something was taken. With ``patience_seconds`` they end so long
    after the beginning, or after something was taken: so one answer of a frozen server is awaited
    and not two.
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
        self._next = FIRST_SECONDS
        fresh = min(seconds, FRESH_SECONDS) if patience_seconds is None else patience_seconds
        self._until: float | None = clock() + fresh
        self._most_until = clock() + min(seconds, patience_seconds or seconds)

    def progressed(self) -> None:
        """The server has taken something: it is slow, and not away."""
        self._next = FIRST_SECONDS
        self._until = None
        if self._patience_seconds is not None:
            self._until = self._clock() + self._patience_seconds

    def pause(self, error: UnavailableError, *, least_seconds: float = 0.0) -> None:
        """``least_seconds``: the server asks for such a pause. Raises ``error`` when the time is
        over, or would be after the pause."""
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
