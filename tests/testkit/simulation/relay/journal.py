"""A modelled journal: sealed in segments, trimmed by whole segments, bounded in events."""

from __future__ import annotations

from dataclasses import dataclass, field

SEGMENTS = 8
"""As ``SEGMENTS_AT_LEAST`` of the real one."""


@dataclass
class ModelJournal:
    """``most``: how many events it holds at most. ``full_since``: when it first refused an event
    and took none since. ``last_full``: when it last refused one."""

    name: str
    most: int
    floor: int = 0
    acked: int = 0
    safe: int = 0
    closed: bool = False
    removed: bool = False
    full: bool = False
    full_since: float | None = None
    last_full: float = float("-inf")
    _seals: list[int] = field(default_factory=list)

    def append(self, events: int, now: float) -> bool:
        """Append events, or none when there is no room."""
        held = self.safe - self.floor
        self.full = held + events > self.most and self.acked < self.safe
        if self.full:
            self.last_full = now
            self.full_since = now if self.full_since is None else self.full_since
            return False
        self.full_since = None
        self.safe += events
        begun = self._seals[-1] if self._seals else self.floor
        if self.safe - begun >= max(1, self.most // SEGMENTS):
            self._seals.append(self.safe)
        return True

    def trim(self, ack: int) -> None:
        """Drop the segments whose events all lie below ``ack``."""
        self.acked = max(self.floor, ack)
        if self.acked == self.safe and (not self._seals or self._seals[-1] < self.safe):
            self._seals.append(self.safe)
        while self._seals and self._seals[0] <= ack:
            self.floor = self._seals.pop(0)

    def close(self) -> None:
        self.closed, self.full, self.full_since = True, False, None
