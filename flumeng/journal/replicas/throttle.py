"""Limits how fast copies catch up, so that senders of new events do not wait for it.

Without new events there is no limit; otherwise twice their rate, and ``LEAST`` at least.
"""

from __future__ import annotations

import threading

from flumeng.platform.rate_limit import RateLimit

LEAST = 32 << 20
"""Bytes per second."""
BUSY_SECONDS = 1.0
"""How long after an append more are expected."""
WHOLE_BYTES, PART_BYTES = 8 << 20, 1 << 20
"""Sent at once: at rest, and while events are taken."""


class Throttle:
    """For all journals of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken, self._since, self._took_at = 0, 0.0, 0.0
        self._limit = RateLimit(LEAST, 0.0)
        self._due_at = 0.0

    def took(self, nbytes: int, now: float) -> None:
        with self._lock:
            self._taken += nbytes
            self._took_at = now
            if (seconds := now - self._since) >= BUSY_SECONDS:
                self._limit.rate = max(LEAST, 2 * self._taken / seconds)
                self._taken, self._since = 0, now

    def due_at(self, now: float) -> float:
        return self._due_at if self._is_busy(now) else now

    def at_once(self, now: float) -> int:
        """How many bytes to send at once."""
        return PART_BYTES if self._is_busy(now) else WHOLE_BYTES

    def _is_busy(self, now: float) -> bool:
        return now - self._took_at < BUSY_SECONDS

    def sent(self, nbytes: int, now: float) -> None:
        with self._lock:
            self._due_at = now + self._limit.take(nbytes, now)
