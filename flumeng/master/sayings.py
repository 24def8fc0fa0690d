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

    def is_new(self, topic: str, sentence: str) -> bool:
        """Whether the sentence was not given for this topic within the last ``QUIET_SECONDS``.

        One that is given more often than that is new once.
        """
        now = self._clock()
        self._heard = {key: at for key, at in self._heard.items() if now - at < QUIET_SECONDS}
        known = (topic, sentence) in self._heard
        self._heard[topic, sentence] = now
        return not known
