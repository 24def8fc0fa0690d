"""A replica on a disk that keeps synced writes, and perhaps a part of the others."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from flumeng.journal.replication.follower import Follower
from flumeng.journal.replication.history import Log, Start


class Event(NamedTuple):
    """``value`` is one that no other event has."""

    term: int
    value: int


@dataclass
class ReplicaDisk:
    """Events of [floor, floor + len(events)); those below ``safe`` outlive a crash."""

    id: str
    lineage: str
    floor: int
    term: int = 0
    checkpoint: int = 0
    safe: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.floor + len(self.events)

    def at(self, seq: int) -> Event:
        return self.events[seq - self.floor]

    def read(self, start: int, end: int) -> list[Event]:
        assert start >= self.floor
        return self.events[start - self.floor : end - self.floor]

    def cut(self, end: int) -> None:
        del self.events[end - self.floor :]
        self.safe = min(self.safe, end)

    def restart(self, floor: int, lineage: str) -> None:
        self.lineage, self.floor, self.safe, self.events = lineage, floor, floor, []
        self.checkpoint = floor

    def trim(self, floor: int) -> None:
        if floor > self.floor:
            del self.events[: floor - self.floor]
            self.floor = floor
            self.checkpoint = max(self.checkpoint, floor)

    def crash(self, rng: random.Random) -> None:
        """Tear the unsynced events at a random place."""
        self.cut(rng.randint(self.safe, self.end))
        self.safe = self.end

    def duplicate(self) -> Follower:
        """As its process finds it."""
        history: list[Start] = []
        for seq, event in enumerate(self.events, self.floor):
            if not history or event.term != history[-1].term:
                history.append(Start(event.term, seq))
        log = Log(self.floor, self.end, self.end, tuple(history))
        return Follower(self.id, self.lineage, log, self.term, self.checkpoint)
