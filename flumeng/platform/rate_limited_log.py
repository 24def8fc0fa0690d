"""Rate-limited logging."""

from __future__ import annotations

import logging
import time

SECONDS = 60.0


class RateLimitedLog:
    """Logs one kind of warning at most once a minute. Concurrent threads may both log it."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next = float("-inf")

    def warning(self, text: str, *args: object, exc_info: bool = False) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SECONDS
            self._log.warning(text, *args, exc_info=exc_info or None)
