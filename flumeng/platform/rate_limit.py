"""A rate limit: a token bucket that may be overdrawn, since what was received has to be taken.

Pure: seconds come from the caller. What is overdrawn is waited for before anything more is read, so
over any longer time the rate holds.
"""

from __future__ import annotations

BURST_SECONDS = 0.1


class RateLimit:
    """``rate`` in bytes per second, above 0; ``now`` in seconds that only grow."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._balance = 0.0
        self._at = now

    def take(self, nbytes: int, now: float) -> float:
        """Count what was received; gives the seconds to wait before receiving more."""
        saved = self._balance + (now - self._at) * self.rate
        self._balance = min(saved, self.rate * BURST_SECONDS) - nbytes
        self._at = now
        return max(0.0, -self._balance / self.rate)
