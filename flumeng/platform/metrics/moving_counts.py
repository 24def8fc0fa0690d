"""Sums of named counts over the last minutes, to within a slot of SLOT_SECONDS. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

SLOT_SECONDS = 5.0
WINDOWS: Mapping[str, float] = {"1m": 60.0, "5m": 300.0, "15m": 900.0}


class MovingCounts:
    """For one thread at a time. ``clock`` is monotonic. Invariant: slots are in order, none is
    older than the longest window or empty."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots: deque[tuple[int, Counter[str]]] = deque()

    def add(self, counts: Mapping[str, int]) -> None:
        found = Counter({name: count for name, count in counts.items() if count})
        now = self._forget()
        if not found:
            return
        if not self._slots or self._slots[-1][0] != now:
            self._slots.append((now, Counter()))
        self._slots[-1][1].update(found)

    def sums(self) -> dict[str, Counter[str]]:
        """Window -> name -> count."""
        now = self._forget()
        return {
            window: sum((c for slot, c in self._slots if slot > now - _slot(seconds)), Counter())
            for window, seconds in WINDOWS.items()
        }

    def check(self) -> None:
        slots = [slot for slot, _ in self._slots]
        assert slots == sorted(set(slots)), slots
        assert not slots or slots[-1] - slots[0] < _slot(max(WINDOWS.values())), slots
        assert all(counts.total() for _, counts in self._slots)

    def _forget(self) -> int:
        now = _slot(self._clock())
        while self._slots and self._slots[0][0] <= now - _slot(max(WINDOWS.values())):
            self._slots.popleft()
        return now


def _slot(seconds: float) -> int:
    return int(seconds // SLOT_SECONDS)
