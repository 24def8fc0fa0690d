"""The pauses of a flow's sources, with reasons and durations. Pure. A flow at its limit is paused
many times a second: pauses at most ``GAP_SECONDS`` apart count as one."""

from __future__ import annotations

from typing import NamedTuple

GAP_SECONDS = 2.0


class Held(NamedTuple):
    """A flow's pause. ``by``: its reason, else empty. ``total_seconds``: of all its pauses."""

    by: str
    seconds: float
    total_seconds: float


class BackPressure:
    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._last = ""
        self._since = 0.0
        self._until = float("-inf")
        self._before = 0.0

    @property
    def paused(self) -> bool:
        return bool(self._reasons)

    def hold(self, reason: str, text: str, now: float) -> None:
        if not self._reasons and now - self._until > GAP_SECONDS:
            self._before += max(0.0, self._until - self._since)
            self._since = now
        self._reasons[reason] = self._last = text

    def release(self, reason: str, now: float) -> None:
        if self._reasons.pop(reason, None) is not None and not self._reasons:
            self._until = now

    def held(self, now: float) -> Held:
        """Return the current pause and the total of all pauses. Thread-safe."""
        reasons = list(self._reasons.values())
        if reasons:
            seconds = now - self._since
            return Held(reasons[0], seconds, self._before + seconds)
        if now - self._until <= GAP_SECONDS:
            return Held(self._last, now - self._since, self._before + self._until - self._since)
        return Held("", 0.0, self._before + max(0.0, self._until - self._since))
