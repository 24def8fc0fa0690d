"""How many calls may run at once. A call whose reader is frozen does not keep the others out.

A call that waits for its reader cannot be ended, and keeps its thread. So one that has not moved
for a while loses its place, though it may go on; there is a second bound, for all together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STUCK = 4
"""So many times the number of places may be taken by calls that do not move."""


class Places:
    """Used from any thread. ``clock`` gives seconds that only grow."""

    def __init__(
        self, count: int, still_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._still_seconds = still_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._moved_at: dict[object, float] = {}

    def take(self, call: object) -> bool:
        """Whether there was a place for the call."""
        now = self._clock()
        with self._lock:
            moving = sum(1 for at in self._moved_at.values() if now - at < self._still_seconds)
            if moving >= self._count or len(self._moved_at) >= self._count * (1 + STUCK):
                return False
            self._moved_at[call] = now
            return True

    def moved(self, call: object) -> None:
        """Its reader took something."""
        self._moved_at[call] = self._clock()

    def leave(self, call: object) -> None:
        with self._lock:
            self._moved_at.pop(call, None)
