"""Suppresses repeated log messages. ``clock`` is monotonic."""

from __future__ import annotations

from collections.abc import Callable

QUIET_SECONDS = 60.0


class Sayings:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, str], float] = {}
        self._forgot_at = float("-inf")

    def is_new(self, topic: str, sentence: str) -> bool:
        """False within ``QUIET_SECONDS`` of the last call, which each repetition extends."""
        now = self._clock()
        if now - self._forgot_at >= QUIET_SECONDS:
            self._heard = {key: at for key, at in self._heard.items() if now - at < QUIET_SECONDS}
            self._forgot_at = now
        heard_at = self._heard.get((topic, sentence), float("-inf"))
        self._heard[topic, sentence] = now
        return now - heard_at >= QUIET_SECONDS
