"""Since when something has been so: turns the passing of time into facts for the planner.

Only what this process has seen counts, on a clock that only grows: a process that has just begun to
look starts at zero. A lost connection or a failed look takes nothing back: a fact that held before
and holds after has held in between, unless a record changed that is its witness.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

PAUSE_SECONDS = 1.0
PAUSE_MOST_SECONDS = 300.0
QUIET_PAUSES = 10


class _Moment(NamedTuple):
    since: float
    witness: object


class Moments:
    """Each look is between ``begin`` and ``end``; one that fails has no ``end``.

    ``soonest`` is the time until the next fact comes true of those asked for since ``begin``; None
    when none will by itself.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._before: dict[str, dict[str, _Moment]] = {}
        self._asked: dict[str, dict[str, _Moment]] = {}
        self._missed_changes = False
        self.soonest: float | None = None

    def begin(self) -> None:
        self._asked = {}
        self.soonest = None

    def miss_changes(self) -> None:
        """Changes since the last complete look may not have been seen."""
        self._missed_changes = True

    def end(self) -> None:
        """The look is complete: facts that it did not ask for are forgotten."""
        self._before, self._missed_changes = self._asked, False

    def lasting(
        self, what: str, keys: Collection[str] | Mapping[str, object], seconds: float
    ) -> frozenset[str]:
        """Those of ``keys`` that have been among the keys of ``what`` for so long.

        The caller asks once in each look, and gives all keys; a key that was left out starts at
        zero. A mapping gives the witness of each key: one that is another after missed changes
        starts the key at zero.
        """
        now = self._clock()
        before = self._before.get(what, {})
        witnesses = keys if isinstance(keys, Mapping) else dict.fromkeys(keys)
        asked = self._asked[what] = {}
        for key, witness in witnesses.items():
            known = before.get(key)
            lasts = known and not (self._missed_changes and known.witness != witness)
            asked[key] = _Moment(known.since if known and lasts else now, witness)
        left = {key: seconds - (now - moment.since) for key, moment in asked.items()}
        for rest in left.values():
            if rest > 0:
                self.look_in(rest)
        return frozenset(key for key, rest in left.items() if rest <= 0)

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
