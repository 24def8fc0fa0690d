"""Whether a process is up (its main loop runs) and ready (its dependencies are available). A
supervisor may end a process that is not up."""

from __future__ import annotations

import time
from collections.abc import Callable

Reason = Callable[[], str | None]
"""Returns why a process cannot do its work now, or None when it can."""


class Health:
    """The health of a process. The main loop calls ``turned`` each iteration; any thread may read.
    After ``limit_seconds`` without a call the loop is stuck, unless it announced a longer time."""

    def __init__(self, limit_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._turned_at = clock()
        self._due_at = self._turned_at + limit_seconds
        self._reasons: list[Reason] = []
        self.on_turn: Callable[[], None] = lambda: None

    def turned(self, *, next_within_seconds: float = 0.0) -> None:
        self._turned_at = self._clock()
        self._due_at = self._turned_at + self._limit_seconds + next_within_seconds
        self.on_turn()

    def be_patient(self, seconds: float) -> None:
        """Extend the limit, since the whole process was stopped for ``seconds``."""
        self._due_at += seconds

    def needs(self, reason: Reason) -> None:
        self._reasons.append(reason)

    @property
    def turn_age_seconds(self) -> float:
        return self._clock() - self._turned_at

    @property
    def stuck(self) -> str | None:
        """Why the main loop counts as stuck; None when it is up."""
        if self._clock() <= self._due_at:
            return None
        return f"the main loop has not turned for {self.turn_age_seconds:.0f} s"

    @property
    def unready(self) -> list[str]:
        stuck = self.stuck
        return [*([stuck] if stuck else ()), *filter(None, (ask() for ask in self._reasons))]
