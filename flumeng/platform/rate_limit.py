"""A token bucket that may be overdrawn, since received bytes have to be taken. Callers wait for the
overdraft, so the rate holds over any longer time. Pure."""

from __future__ import annotations

BURST_SECONDS = 0.1


class RateLimit:
    """A token bucket; ``rate`` in bytes per second, above 0; ``now`` in monotonic seconds."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._balance = 0.0
        self._at = now

    def take(self, nbytes: int, now: float) -> float:
        """Count received bytes; return the seconds to wait before receiving more."""
        saved = self._balance + (now - self._at) * self.rate
        self._balance = min(saved, self.rate * BURST_SECONDS) - nbytes
        self._at = now
        return max(0.0, -self._balance / self.rate)
