"""What was said of late, so that nothing is said twice while it stays so, or comes again and
again."""

from __future__ import annotations

from collections.abc import Callable

QUIET_SECONDS = 60.0


class Sayings:
    """``clock`` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, str], float] = {}
        self._forgot_at = float("-inf")

    def is_new(self, topic: str, sentence: str) -> bool:
        """Whether the sentence was not given for this topic within the last ``QUIET_SECONDS``.

        One that is given more often than that is new once.
        """
        now = self._clock()
        if now - self._forgot_at >= QUIET_SECONDS:
            self._heard = {key: at for key, at in self._heard.items() if now - at < QUIET_SECONDS}
            self._forgot_at = now
        heard_at = self._heard.get((topic, sentence), float("-inf"))
        self._heard[topic, sentence] = now
        return now - heard_at >= QUIET_SECONDS
