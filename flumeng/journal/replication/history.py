"""The terms of a log: the seq at which each begins, and the common prefix of two logs.

One process writes a term's events, and a replica accepts them only after a log that is the
primary's. So two logs with an event of one term at one seq are equal up to there. (Raft's log
matching: Ongaro, Ousterhout, USENIX ATC 2014, section 5.3; Kafka's KIP-101 and KIP-279.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Start(NamedTuple):
    """The events from ``seq`` on, up to the next start, are of ``term``."""

    term: int
    seq: int


History = tuple[Start, ...]
"""Both fields increase from start to start."""


class Log(NamedTuple):
    """Events of [floor, end) of the terms in ``history``; those of [floor, safe) are on disk."""

    floor: int = 0
    end: int = 0
    safe: int = 0
    history: History = ()

    @property
    def last_term(self) -> int:
        return self.history[-1].term if self.end > self.floor else 0

    def extended(self, starts: Iterable[Start], end: int) -> Log:
        """Returns the log with events up to ``end``, whose terms begin at ``starts``."""
        history = self.history
        for start in starts:
            if not history or start.term > history[-1].term:
                history += (start,)
        return self._replace(end=end, history=history)

    def cut(self, end: int) -> Log:
        kept = tuple(start for start in self.history if start.seq < end)
        return self._replace(end=end, safe=min(self.safe, end), history=kept)

    def terms(self, start: int, end: int) -> History:
        begun = [run for run in self.history if run.seq <= start]
        later = [run for run in self.history if start < run.seq < end]
        return tuple(run._replace(seq=max(run.seq, start)) for run in (*begun[-1:], *later))


def run_of(history: History, seq: int) -> Start:
    """The start of the term of the event ``seq``."""
    return next(start for start in reversed(history) if start.seq <= seq)


def agreed(log: Log, other: Log) -> int:
    """The end of the events that both logs share; the higher floor if they share none above it."""
    end, floor = min(log.end, other.end), max(log.floor, other.floor)
    while end > floor:
        ours, theirs = run_of(log.history, end - 1), run_of(other.history, end - 1)
        if ours.term == theirs.term:
            return end
        end = max(ours.seq, theirs.seq)
    return floor
