"""How many requests a key may send: an address, or a proven name."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

MOST_KEYS = 10_000


class Rates:
    """The generic cell rate algorithm (ITU-T I.371) for each key. Thread-safe. ``burst``: requests
    at once; ``monotonic``: seconds."""

    def __init__(self, per_second: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._interval, self._burst = 1 / per_second, burst
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._next: OrderedDict[str, float] = OrderedDict()
        """When each key would have sent all its requests at its rate."""

    def take(self, key: str) -> float:
        """Count a request; return 0, or for how many seconds the key may send none."""
        with self._lock:
            now = self._monotonic()
            next_at = max(self._next.get(key, now), now)
            wait = next_at - now - (self._burst - 1) * self._interval
            if wait > 1e-9:
                return wait
            self._next[key] = next_at + self._interval
            self._next.move_to_end(key)
            if len(self._next) > MOST_KEYS:
                self._next.popitem(last=False)
            return 0.0
