"""Messages between a primary and its replicas; each may be lost, late, duplicated or overtaken."""

from __future__ import annotations

from typing import NamedTuple

from flumeng.journal.replication.history import History, Log


class Begin(NamedTuple):
    """The primary's first message: the ``log`` at the beginning of its ``term``; always the
    same."""

    lineage: str
    term: int
    log: Log


class Frames(NamedTuple):
    """Events of [start, end), or none, to send only the rest. Events below ``checkpoint`` are on
    every replica; readers have acked those below ``acked``."""

    term: int
    start: int
    end: int
    terms: History
    checkpoint: int
    acked: int


class Reset(NamedTuple):
    """The events that the replica lacks are acked and trimmed: it restarts at ``floor``."""

    term: int
    floor: int


class Began(NamedTuple):
    """The replica's log is a prefix of the primary's, and on disk up to ``end``."""

    term: int
    replica: str
    end: int


class Persisted(NamedTuple):
    """The replica has all events below ``end`` on disk. With ``gap`` it lacks the next ones."""

    term: int
    replica: str
    end: int
    gap: bool = False


class Unmatched(NamedTuple):
    """The replica has restarted, and its log is not matched with the primary's."""

    term: int
    replica: str


class Refused(NamedTuple):
    """The replica has a primary of this later ``term``."""

    term: int


ToFollower = Begin | Frames | Reset
ToPrimary = Began | Persisted | Unmatched | Refused
