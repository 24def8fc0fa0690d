"""Suppresses repeated log messages."""

from __future__ import annotations

from collections.abc import Callable

QUIET_SECONDS = 60.0


class RepeatedMessages:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, str], float] = {}
        self._trimmed_at = float("-inf")

    def is_new(self, topic: str, sentence: str) -> bool:
        """Return False within ``QUIET_SECONDS`` of the last call with both texts, else True."""
        now = self._clock()
        if now - self._trimmed_at >= QUIET_SECONDS:
            recent = {key: at for key, at in self._logged.items() if now - at < QUIET_SECONDS}
            self._logged, self._trimmed_at = recent, now
        logged_at = self._logged.get((topic, sentence), float("-inf"))
        self._logged[topic, sentence] = now
        return now - logged_at >= QUIET_SECONDS
