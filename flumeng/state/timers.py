"""Since when something has been so: what turns the passing of time into facts for the planner.

Only what one process has seen counts, on a clock that only grows: a process that has just begun to
look starts from nought.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

PAUSE_SECONDS = 1.0
PAUSE_MOST_SECONDS = 300.0
QUIET_PAUSES = 10


class Moments:
    """``soonest`` is the time until the next fact comes true of those asked for since ``begin``;
    None when none will by itself."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, dict[str, float]] = {}
        self._before: dict[str, dict[str, float]] = {}
        self.soonest: float | None = None

    def begin(self) -> None:
        """A new look: what the last one did not ask for is forgotten."""
        self._before, self._since = self._since, {}
        self.soonest = None

    def forget(self) -> None:
        """Whatever is so begins now."""
        self._before = {}

    def lasting(self, what: str, keys: Collection[str], seconds: float) -> frozenset[str]:
        """Those of ``keys`` that have been among the keys of ``what`` for so long.

        Whoever asks does so once in each look, and gives all keys; what was left out starts anew.
        """
        now = self._clock()
        before = self._before.get(what, {})
        since = self._since[what] = {key: before.get(key, now) for key in keys}
        left = [seconds - (now - moment) for moment in since.values()]
        for rest in left:
            if rest > 0:
                self.look_in(rest)
        return frozenset(key for key, rest in zip(since, left, strict=True) if rest <= 0)

    def look_in(self, seconds: float) -> None:
        """Something may have changed after so long."""
        if self.soonest is None or seconds < self.soonest:
            self.soonest = seconds


class Pauses:
    """Between rounds of moves: the pause doubles with each round, up to five minutes, and starts
    anew when it was quiet for ten times as long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause = 0.0
        self._moving = False
        self._ended = float("-inf")

    def left(self, moving: bool) -> float:
        """Seconds until a round may begin; 0 while one is under way.

        Called at each look with whether anything moves now.
        """
        now = self._clock()
        if moving and not self._moving:
            quiet = now - self._ended > QUIET_PAUSES * self._pause
            doubled = min(2 * self._pause, PAUSE_MOST_SECONDS)
            self._pause = PAUSE_SECONDS if quiet else doubled
        if self._moving and not moving:
            self._ended = now
        self._moving = moving
        return 0.0 if moving else max(0.0, self._ended + self._pause - now)
