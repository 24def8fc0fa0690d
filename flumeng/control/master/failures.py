"""How many of a master's last ticks failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

TICKS = 12
FAILURES, FAILING_SECONDS = 3, 5.0


class Failures:
    """Of the last ``TICKS`` ticks. ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed_at: deque[float | None] = deque(maxlen=TICKS)

    def add(self, *, failed: bool) -> None:
        self._failed_at.append(self._clock() if failed else None)

    @property
    def too_many(self) -> bool:
        """At least ``FAILURES``, the first of them ``FAILING_SECONDS`` ago."""
        failed = [at for at in self._failed_at if at is not None]
        return len(failed) >= FAILURES and self._clock() - failed[0] >= FAILING_SECONDS
