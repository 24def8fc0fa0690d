"""What a primary and the replicas of its journal say to each other.

Each message may be lost, late, doubled or overtaken by another.
"""

from __future__ import annotations

from typing import NamedTuple

from flumeng.journal.replication.history import History, Log


class Begin(NamedTuple):
    """The first that a primary says to a replica, of the journal of this ``lineage``: the ``log``
    that it began its ``term`` with. All that it says so in one term is the same."""

    lineage: str
    term: int
    log: Log


class Frames(NamedTuple):
    """Events of [start, end) and their terms; with none it only tells the rest. Those below
    ``checkpoint`` are on every replica, those below ``acked`` nobody needs any more."""

    term: int
    start: int
    end: int
    terms: History
    checkpoint: int
    acked: int


class Reset(NamedTuple):
    """The events that the replica lacks are acked, and gone: it begins anew at ``floor``."""

    term: int
    floor: int


class Began(NamedTuple):
    """The replica's log is the beginning of the primary's, and on disk up to ``end``."""

    term: int
    replica: str
    end: int


class Persisted(NamedTuple):
    """The replica has everything below ``end`` on disk. With ``gap`` it lacks what comes next."""

    term: int
    replica: str
    end: int
    gap: bool = False


class Unmatched(NamedTuple):
    """The replica has been started since, and does not know whether its log is the primary's."""

    term: int
    replica: str


class Refused(NamedTuple):
    """The replica has a primary of this later ``term``."""

    term: int


ToFollower = Begin | Frames | Reset
ToPrimary = Began | Persisted | Unmatched | Refused
