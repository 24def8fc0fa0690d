"""What happens often is told in the log now and then."""

from __future__ import annotations

import time

SECONDS = 60.0


class Seldom:
    """Of one kind of thing: whether it is to be told. Used by one thread at a time."""

    def __init__(self) -> None:
        self._next = float("-inf")

    def is_due(self) -> bool:
        """True once, and again after a minute."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + SECONDS
        return True
