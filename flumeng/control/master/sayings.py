"""Suppresses repeated log messages."""

from __future__ import annotations

from collections.abc import Callable

QUIET_SECONDS = 60.0


class Sayings:
    """``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, str], float] = {}
        self._forgot_at = float("-inf")

    def is_new(self, topic: str, sentence: str) -> bool:
        """Whether the sentence was not given for this topic within ``QUIET_SECONDS``. Each
        repetition extends that time."""
        now = self._clock()
        if now - self._forgot_at >= QUIET_SECONDS:
            self._heard = {key: at for key, at in self._heard.items() if now - at < QUIET_SECONDS}
            self._forgot_at = now
        heard_at = self._heard.get((topic, sentence), float("-inf"))
        self._heard[topic, sentence] = now
        return now - heard_at >= QUIET_SECONDS
