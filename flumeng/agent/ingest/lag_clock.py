"""How long the oldest unacked event of a journal has waited. Pure.

Ends of journals are noted every few seconds: an event came no later than the first note above it.
Notes are kept while something waits, and bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

MOST_NOTES = 64


class LagClock:
    """For any number of journals, and one thread at a time."""

    def __init__(self) -> None:
        self._notes: dict[str, deque[tuple[int, float]]] = {}

    def see(self, journal: str, acked: int, safe: int, now: float) -> None:
        if acked >= safe:
            self._notes.pop(journal, None)
            return
        notes = self._notes.setdefault(journal, deque())
        if not notes or safe > notes[-1][0]:
            notes.append((safe, now))
        while notes[0][0] <= acked:
            notes.popleft()
        if len(notes) > MOST_NOTES:
            self._notes[journal] = _halved(notes)

    def seconds(self, journal: str, acked: int, now: float) -> float:
        """How long the event ``acked`` has waited, to within the time between notes."""
        notes = self._notes.get(journal, ())
        return next((max(0.0, now - at) for safe, at in notes if safe > acked), 0.0)

    def keep(self, journals: Collection[str]) -> None:
        for gone in self._notes.keys() - set(journals):
            del self._notes[gone]


def _halved(notes: deque[tuple[int, float]]) -> deque[tuple[int, float]]:
    """Two neighbours become one with the later end and the earlier time, so that a wait never
    appears shorter."""
    pairs = list(notes)
    return deque(
        (pairs[min(n + 1, len(pairs) - 1)][0], pairs[n][1]) for n in range(0, len(pairs), 2)
    )
