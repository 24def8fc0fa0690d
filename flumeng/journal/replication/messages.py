"""Messages between a primary and its replicas; each may be lost, late, duplicated or reordered."""

from __future__ import annotations

from typing import NamedTuple

from flumeng.journal.replication.history import History, Log


class Begin(NamedTuple):
    """The primary's first message: its ``log`` at the beginning of its ``term``."""

    lineage: str
    term: int
    log: Log


class Frames(NamedTuple):
    """Events of [start, end), or none, to send only the other fields. Events below ``checkpoint``
    are on every in-sync replica; readers have acked those below ``acked``."""

    term: int
    start: int
    end: int
    terms: History
    checkpoint: int
    acked: int


class Reset(NamedTuple):
    """Makes a replica restart at ``floor``, since the primary has trimmed events that it lacks."""

    term: int
    floor: int


class Began(NamedTuple):
    """Reply: the replica's log is a prefix of the primary's, and on disk up to ``end``."""

    term: int
    replica: str
    end: int


class Persisted(NamedTuple):
    """Reply: events below ``end`` are on the replica's disk; with ``gap`` the next are missing."""

    term: int
    replica: str
    end: int
    gap: bool = False


class Unmatched(NamedTuple):
    """Reply: the replica, as after a restart, has not matched its log with the primary's."""

    term: int
    replica: str


class Refused(NamedTuple):
    """Reply: the message is outdated; the receiver knows this ``term``."""

    term: int


ToFollower = Begin | Frames | Reset
ToPrimary = Began | Persisted | Unmatched | Refused
