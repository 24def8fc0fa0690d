"""Limits and retention of a journal. Pure."""

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
    """The disk space shared by the journals of a node. ``left``: bytes by which they may grow
    together; ``flows``: the number of active flows."""

    left: int
    flows: int

    def allows(self, held: int) -> bool:
        """Return whether a journal may hold ``held`` bytes: no more than are left, unless its flow
        is the only one. (Dynamic thresholds: Choudhury, Hahne, IEEE/ACM ToN 6(2), 1998.)"""
        return self.flows <= 1 or held <= self.left


def size_text(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def no_limit() -> Room:
    return Room(sys.maxsize, 1)


@dataclass(frozen=True)
class Limits:
    """The limits of one journal. At ``max_bytes`` it accepts nothing until events are acked. Acked
    events are retained for ``retain_seconds`` and up to ``retain_bytes`` (0: unlimited; both 0: not
    at all), while new events have room."""

    max_bytes: int = MAX_BYTES
    retain_seconds: float = 0.0
    retain_bytes: int = 0

    @property
    def retain(self) -> bool:
        return bool(self.retain_seconds or self.retain_bytes)

    def segment_bytes(self, at_most: int, state_bytes: int = 0) -> int:
        """Return the size at which a segment is sealed: small in a small journal, as only whole
        segments are freed, but large compared with the source state that each begins with."""
        size = min(at_most, self.max_bytes // SEGMENTS_AT_LEAST)
        return max(1, size, min(STATE_TIMES * state_bytes, self.max_bytes // 2))

    def expired(self, acked: Sequence[int], age: Callable[[int], float]) -> int:
        """Return how many of the ``acked`` (sizes, oldest first) to delete; ``age(n)``: seconds."""
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
