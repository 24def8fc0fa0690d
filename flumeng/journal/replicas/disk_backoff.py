"""Back-off for retries at a failed disk."""

from __future__ import annotations

from math import inf

FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0


class DiskBackoff:
    """Doubles with each failure; starts over after a success, or ``MOST_SECONDS`` without a
    failure."""

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
