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
    """``left``: bytes that all journals may still grow; ``flows``: the number of active ones."""

    left: int
    flows: int

    def allows(self, held: int) -> bool:
        """Whether a journal may hold ``held`` bytes: as much as is left free, unless its flow is
        alone. (Dynamic thresholds: Choudhury, Hahne, IEEE/ACM ToN 6(2), 1998.)"""
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
    """At ``max_bytes`` a journal accepts nothing until events are acked. Acked events are retained
    for ``retain_seconds`` and up to ``retain_bytes`` (0: unlimited; both 0: not at all), while
    there is room for new ones."""

    max_bytes: int = MAX_BYTES
    retain_seconds: float = 0.0
    retain_bytes: int = 0

    @property
    def retain(self) -> bool:
        return bool(self.retain_seconds or self.retain_bytes)

    def segment_bytes(self, at_most: int, state_bytes: int = 0) -> int:
        """Small in a small journal, since whole segments are freed, but large beside the state."""
        size = min(at_most, self.max_bytes // SEGMENTS_AT_LEAST)
        return max(1, size, min(STATE_TIMES * state_bytes, self.max_bytes // 2))

    def expired(self, acked: Sequence[int], age: Callable[[int], float]) -> int:
        """Counts the oldest acked segments to delete; ``age(n)`` is in seconds."""
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
