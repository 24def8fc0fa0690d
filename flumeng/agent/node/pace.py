"""Adaptive polling: often after a change, then with growing intervals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

FIRST_SECONDS = 1.0
MOST_SECONDS = 10.0


@dataclass
class _Look:
    due: float
    wait: float
    saw: object = None


class Pace:
    """Polls a name a second after a change, then after twice the last wait, up to ``most_seconds``.
    The longest waits end together, so that many polls are one request."""

    def __init__(self, clock: Callable[[], float], most_seconds: float = MOST_SECONDS) -> None:
        self._clock = clock
        self._most = most_seconds
        self._looks: dict[str, _Look] = {}

    def due(self, names: Collection[str]) -> list[str]:
        """The ``names`` to poll now; others are forgotten."""
        now = self._clock()
        if len(self._looks) > len(names) or not self._looks.keys() <= set(names):
            self._looks = {name: look for name, look in self._looks.items() if name in names}
        return [n for n in names if (look := self._looks.get(n)) is None or look.due <= now]

    def saw(self, name: str, what: object) -> None:
        look = self._looks.get(name)
        if look is None or look.saw != what:
            look = self._looks[name] = _Look(0.0, FIRST_SECONDS, what)
        else:
            look.wait = min(2 * look.wait, self._most)
        look.due = self._clock() + look.wait
        if look.wait == self._most:
            look.due -= look.due % self._most

    def soon(self, names: Iterable[str]) -> None:
        for name in names:
            self._looks.pop(name, None)
