"""A clock that stands still until a test moves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Passed where code wants a ``Callable[[], float]``; ``now`` are the seconds that it shows."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Passed where code wants to sleep; returns at once, that much later."""
        self.now += seconds
