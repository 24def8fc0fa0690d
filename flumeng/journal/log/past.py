"""Keeps the progress of journals of a minute ago, to detect a growing lag. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

AGO_SECONDS = 60.0
NOTE_SECONDS = 10.0


class Note(NamedTuple):
    at: float
    acked: int
    safe: int


class Past:
    """For any number of journals, and one thread at a time."""

    def __init__(self) -> None:
        self._notes: dict[str, deque[Note]] = {}

    def knows(self, journal: str) -> bool:
        return journal in self._notes

    def see(self, journal: str, acked: int, safe: int, now: float) -> None:
        notes = self._notes.setdefault(journal, deque())
        if not notes or (notes[-1][1:] != (acked, safe) and now - notes[-1].at >= NOTE_SECONDS):
            notes.append(Note(now, acked, safe))
        while len(notes) > 1 and notes[1].at <= now - AGO_SECONDS:
            notes.popleft()

    def minute_ago(self, journal: str, now: float) -> Note | None:
        """Returns None for a journal first seen less than a minute ago."""
        notes = self._notes.get(journal)
        if not notes or notes[0].at > now - AGO_SECONDS:
            return None
        return notes[0]

    def keep(self, journals: Collection[str]) -> None:
        for gone in self._notes.keys() - set(journals):
            del self._notes[gone]
