"""How long it is waited before something is tried once more at a disk that has failed."""

from __future__ import annotations

from math import inf

FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0


class DiskBackoff:
    """Each one is twice as long as the one before it; after a success, or when nothing failed for
    ``MOST_SECONDS``, the first one comes again. Seconds are of one clock that only grows."""

    def __init__(self) -> None:
        self._until = -inf
        self._seconds = FIRST_SECONDS

    def is_over(self, now: float) -> bool:
        return now >= self._until

    def begin(self, now: float) -> None:
        if now - self._until > MOST_SECONDS:
            self._seconds = FIRST_SECONDS
        self._until = now + self._seconds
        self._seconds = min(2 * self._seconds, MOST_SECONDS)

    def succeeded(self) -> None:
        self._seconds = FIRST_SECONDS
