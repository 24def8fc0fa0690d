"""Adaptive polling: often after a change, then with growing intervals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

FIRST_SECONDS = 1.0
MOST_SECONDS = 10.0


@dataclass
class _Poll:
    due: float
    wait: float
    seen: object = None


class PollBackoff:
    """Polls a name a second after a change, then after twice the last wait, up to ``most_seconds``.
    The longest waits end at the same time, so that many polls are one request."""

    def __init__(self, clock: Callable[[], float], most_seconds: float = MOST_SECONDS) -> None:
        self._clock = clock
        self._most = most_seconds
        self._polls: dict[str, _Poll] = {}

    def due(self, names: Collection[str]) -> list[str]:
        """Return the names to poll now; forgets all names that are not given."""
        now = self._clock()
        if len(self._polls) > len(names) or not self._polls.keys() <= set(names):
            self._polls = {name: poll for name, poll in self._polls.items() if name in names}
        return [n for n in names if (poll := self._polls.get(n)) is None or poll.due <= now]

    def seen(self, name: str, value: object) -> None:
        poll = self._polls.get(name)
        if poll is None or poll.seen != value:
            poll = self._polls[name] = _Poll(0.0, FIRST_SECONDS, value)
        else:
            poll.wait = min(2 * poll.wait, self._most)
        poll.due = self._clock() + poll.wait
        if poll.wait == self._most:
            poll.due -= poll.due % self._most

    def soon(self, names: Iterable[str]) -> None:
        for name in names:
            self._polls.pop(name, None)
