"""How much a journal may hold, and what it keeps of that which every reader has acked. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_BYTES = 16 << 30
MEMORY_BYTES = 64 << 20
SEGMENTS_AT_LEAST = 8
STATE_TIMES = 4


class Room(NamedTuple):
    """What all journals of a process have together: ``left`` bytes by which they may still grow;
    ``flows`` of them take events."""

    left: int
    flows: int

    def allows(self, held: int) -> bool:
        """Whether a journal may hold so much. One that is alone may have everything, else it leaves
        to the others as much as it holds.

        So one whose readers stand still takes half of the disk at most, and the next one half of
        what that left. (Dynamic thresholds: Choudhury, Hahne, IEEE/ACM ToN 6(2), 1998.)
        """
        return self.flows <= 1 or held <= self.left


def size_text(nbytes: int) -> str:
    """For people: ``1.5 GiB``."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def no_limit() -> Room:
    """The room of a journal that only its own limits bound."""
    return Room(sys.maxsize, 1)


@dataclass(frozen=True)
class Limits:
    """At ``max_bytes`` a journal takes nothing more until something is acked.

    Acked events are kept for ``retain_seconds`` and up to ``retain_bytes``, 0 meaning that it does
    not matter; both 0: they go at once. What is kept so never holds up new events.
    """

    max_bytes: int = MAX_BYTES
    retain_seconds: float = 0.0
    retain_bytes: int = 0

    @property
    def retain(self) -> bool:
        return bool(self.retain_seconds or self.retain_bytes)

    def segment_bytes(self, at_most: int, state_bytes: int = 0) -> int:
        """Space comes back by whole segments: a small journal has small ones. Each begins with the
        whole source state, of ``state_bytes``, which is to be a small part of it."""
        size = min(at_most, self.max_bytes // SEGMENTS_AT_LEAST)
        return max(1, size, min(STATE_TIMES * state_bytes, self.max_bytes // 2))

    def expired(self, acked: Sequence[int], age: Callable[[int], float]) -> int:
        """How many of the oldest acked segments, given by their sizes, are to go.

        ``age`` tells how many seconds ago the n-th of them was written to.
        """
        if not self.retain:
            return len(acked)
        left = sum(acked)
        for number, size in enumerate(acked):
            too_many = self.retain_bytes and left > self.retain_bytes
            too_old = self.retain_seconds and age(number) > self.retain_seconds
            if not (too_many or too_old):
                return number
            left -= size
        return len(acked)
