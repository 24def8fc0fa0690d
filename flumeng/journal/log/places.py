"""Limits concurrent calls. A call with a frozen reader does not keep others out.

Such a call cannot be ended and keeps its thread: it loses its place after a while, though it may go
on. A second limit bounds all calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

STUCK = 4
"""How many times the limit stuck calls may take."""


class Places:
    """Thread-safe. A known peer has at most the part ``each`` of both limits."""

    def __init__(
        self,
        count: int,
        still_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        each: float = 1.0,
    ) -> None:
        self._count = count
        self._each = max(1, int(count * each))
        self._still_seconds = still_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._moved_at: dict[object, float] = {}
        self._peers: dict[object, str] = {}

    def take(self, call: object, peer: str = "") -> bool:
        """Whether there was a place for the call of ``peer``."""
        now = self._clock()
        with self._lock:
            moved_at = self._moved_at
            of_peer = [moved_at[one] for one, its in self._peers.items() if its == peer]
            if self._full(moved_at.values(), now, self._count) or (
                peer and self._full(of_peer, now, self._each)
            ):
                return False
            moved_at[call], self._peers[call] = now, peer
            return True

    def _full(self, moved_at: Collection[float], now: float, count: int) -> bool:
        moving = sum(1 for at in moved_at if now - at < self._still_seconds)
        return moving >= count or len(moved_at) >= count * (1 + STUCK)

    def moved(self, call: object) -> None:
        """Its reader took something."""
        self._moved_at[call] = self._clock()

    def leave(self, call: object) -> None:
        with self._lock:
            self._moved_at.pop(call, None)
            self._peers.pop(call, None)
