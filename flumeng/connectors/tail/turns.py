"""Order in which many followed files are looked at.

Files with recent news come first, the one read last behind the others; then the rest in turn,
within a share of the time; then new ones. The order is reversed now and then, since a backlog may
use up a whole look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import chain

from flumeng.connectors.tail.file_position import FileKey

LOOK_SHARE = 0.05  # of the time, at most, goes into looking at files that had nothing new lately
LOOK_SECONDS = 0.002  # but at least so much at each look
FRESH_SECONDS = 0.25
ACTIVE_SECONDS = 10.0
OTHERS_FIRST = 10  # each so many looks


class Turns:
    """``files``: the followed ones; they may change."""

    def __init__(self, files: Collection[FileKey], timer: Callable[[], float]) -> None:
        self._files = files
        self._timer = timer
        self._round: deque[FileKey] = deque()
        self._fresh: deque[FileKey] = deque()
        self._active: dict[FileKey, float] = {}
        self._looked_at = 0.0
        self._looks = 0

    def found(self, key: FileKey) -> None:
        self._fresh.append(key)

    def had_news(self, key: FileKey, now: float) -> None:
        self._active.pop(key, None)
        self._active[key] = now + ACTIVE_SECONDS

    def first_next_time(self, key: FileKey) -> None:
        self._round.appendleft(key)

    def due(self, now: float, starved: Callable[[], bool]) -> Iterator[FileKey]:
        """The files to look at now; new ones wait while descriptors are short."""
        self._looks += 1
        parts = [self._with_news(now), self._in_turn(now), self._just_found(starved)]
        if self._looks % OTHERS_FIRST == 0:
            parts.reverse()
        return chain.from_iterable(parts)

    def _with_news(self, now: float) -> Iterator[FileKey]:
        for key, until in list(self._active.items()):
            if until < now or key not in self._files:
                del self._active[key]
            else:
                yield key

    def _in_turn(self, now: float) -> Iterator[FileKey]:
        end = self._timer() + max(LOOK_SECONDS, LOOK_SHARE * (now - self._looked_at))
        self._looked_at = now
        if not self._round:
            self._round.extend(self._files)
        for number in range(len(self._round)):
            if (number % 64 == 63 and self._timer() > end) or not self._round:
                break
            key = self._round.popleft()
            if key not in self._active:
                yield key

    def _just_found(self, starved: Callable[[], bool]) -> Iterator[FileKey]:
        end = self._timer() + FRESH_SECONDS
        while self._fresh and not starved() and self._timer() <= end:
            if (key := self._fresh.popleft()) not in self._active:
                yield key
