"""Rounds: each minute all that is there is read once more, a part with each look, so that a large
cluster keeps nobody waiting."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from flumeng.control.zookeeper import Path

ROUND_SECONDS = 60.0
LOOK_SECONDS = 0.25
LOOK_ZNODES = 1000


class Round:
    """Of the master ``me``, the first at once; ``clock`` gives seconds that only ever grow."""

    def __init__(self, me: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = ROUND_SECONDS * _jitter(me)
        self._left: list[Path] = []
        self._at = 0.0

    @property
    def seconds_left(self) -> float:
        """Until the next one is due."""
        return self._at - self._clock()

    @property
    def under_way(self) -> bool:
        return bool(self._left)

    def begin(self, wanted: list[Path]) -> None:
        self.end()
        self._left = wanted

    def take(self) -> list[Path]:
        """What is to be read with this look."""
        part, self._left = self._left[:LOOK_ZNODES], self._left[LOOK_ZNODES:]
        return part

    def end(self) -> None:
        """All has just been read."""
        self._left = []
        self._at = self._clock() + self._seconds


def _jitter(name: str) -> float:
    """0.8 to 1.2, another for each master, so that they do not read everything together."""
    return 0.8 + 0.4 * (zlib.crc32(name.encode()) % 1000) / 1000
