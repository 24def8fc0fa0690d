"""The terms of a log: the seq at which each begins, and the common prefix of two logs.

One process writes the events of a term, and a replica accepts them only after its log matches the
primary's. So two logs that have the same term at one seq are equal up to that seq. (Raft's log
matching: Ongaro, Ousterhout, USENIX ATC 2014, section 5.3; Kafka's KIP-101 and KIP-279.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Start(NamedTuple):
    """The start of a term: the events from ``seq`` to the next start are of ``term``."""

    term: int
    seq: int


History = tuple[Start, ...]
"""The starts of a log's terms; terms and seqs increase."""


class Log(NamedTuple):
    """A log with the events [floor, end) of the terms in ``history``; [floor, safe) on disk."""

    floor: int = 0
    end: int = 0
    safe: int = 0
    history: History = ()

    @property
    def last_term(self) -> int:
        return self.history[-1].term if self.end > self.floor else 0

    def extended(self, starts: Iterable[Start], end: int) -> Log:
        """Return the log with events up to ``end``, whose terms begin at ``starts``."""
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
    """Return the start of the term to which the event ``seq`` belongs."""
    return next(start for start in reversed(history) if start.seq <= seq)


def agreed(log: Log, other: Log) -> int:
    """Return the end of the events shared by two logs; the higher floor if none lie above it."""
    end, floor = min(log.end, other.end), max(log.floor, other.floor)
    while end > floor:
        ours, theirs = run_of(log.history, end - 1), run_of(other.history, end - 1)
        if ours.term == theirs.term:
            return end
        end = max(ours.seq, theirs.seq)
    return floor
