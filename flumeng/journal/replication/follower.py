"""The follower's side of replication: accepts the frames of the latest term's primary.

A follower obeys the latest term that it has received, and stores that term before it answers (I5).
A new term alone removes no events. The follower removes events only after the term's primary has
sent its first log (I11): those missing from it (I13), those below its floor, which readers have
acked, and all of another lineage. In one lineage no missing event was acknowledged, since each
term's primary was in sync before. The package lists the invariants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from flumeng.journal.replication.history import Log, agreed
from flumeng.journal.replication.messages import (
    Began,
    Begin,
    Frames,
    Persisted,
    Refused,
    Reset,
    ToPrimary,
    Unmatched,
)
from flumeng.platform.errors import CorruptError


class Fence(NamedTuple):
    """Store the term durably before the next action."""

    term: int


class Cut(NamedTuple):
    """Remove the events from ``end`` on, durably before the next action."""

    end: int


class Restart(NamedTuple):
    """Remove all events, durably before the next action; the next event has the seq ``floor``."""

    floor: int
    lineage: str


class Write(NamedTuple):
    """Append the message's events from ``start`` on; a sync is due after it."""

    start: int
    end: int


class Keep(NamedTuple):
    """Events below ``acked`` may be trimmed; in-sync replicas have all below ``checkpoint``."""

    checkpoint: int
    acked: int


class Reply(NamedTuple):
    message: ToPrimary


Action = Fence | Cut | Restart | Write | Keep | Reply


@dataclass(frozen=True, slots=True)
class Follower:
    """A follower's state. ``log.safe``: the end of the events on its disk (I2). ``checkpoint``: the
    known global checkpoint, never above ``log.safe`` (I7). ``matched``: the log is a prefix of the
    log of the primary of ``term``."""

    id: str
    lineage: str
    log: Log
    term: int
    checkpoint: int
    matched: bool = False

    def check(self) -> None:
        assert self.log.floor <= self.log.safe <= self.log.end
        assert self.log.floor <= self.checkpoint <= self.log.safe
        assert self.log.last_term <= self.term


Step = tuple[Follower, list[Action]]


def begin(replica: Follower, message: Begin) -> Step:
    """Match the log with the primary's. Raises CorruptError for a cut below the checkpoint."""
    if message.term < replica.term:
        return replica, [Reply(Refused(replica.term))]
    actions: list[Action] = []
    if message.term > replica.term:
        replica = replace(replica, term=message.term, matched=False)
        actions.append(Fence(message.term))
    if not replica.matched:
        # A replica with an event of this term has matched before in it.
        matched = replica.log.last_term == replica.term
        end = replica.log.end if matched else agreed(replica.log, message.log)
        floor = message.log.floor
        # Events below the primary's floor cannot be compared, and are acked.
        if message.lineage != replica.lineage or replica.log.floor < end == floor:
            replica = _emptied(replica, floor, message.lineage)
            actions.append(Restart(floor, message.lineage))
        else:
            replica, cut = _cut(replica, end)
            actions += cut
        replica = replace(replica, log=replica.log._replace(safe=replica.log.end), matched=True)
    return replica, [*actions, Reply(Began(replica.term, replica.id, replica.log.safe))]


def take(replica: Follower, message: Frames) -> Step:
    """Append the primary's events, for which ``synced`` replies; answer other messages at once."""
    if message.term < replica.term:
        return replica, [Reply(Refused(replica.term))]
    if message.term > replica.term or not replica.matched:
        return replica, [Reply(Unmatched(message.term, replica.id))]
    if message.start > replica.log.end:
        return replica, [Reply(Persisted(replica.term, replica.id, replica.log.safe, gap=True))]
    start, actions = replica.log.end, list[Action]()
    if message.end > start:
        replica = replace(replica, log=replica.log.extended(message.terms, message.end))
        actions.append(Write(start, message.end))
    checkpoint = max(replica.checkpoint, min(message.checkpoint, replica.log.safe))
    replica = replace(replica, checkpoint=checkpoint)
    actions.append(Keep(checkpoint, min(message.acked, checkpoint)))
    if not message.end > start:
        actions.append(Reply(Persisted(replica.term, replica.id, replica.log.safe)))
    return replica, actions


def reset(replica: Follower, message: Reset) -> Step:
    if message.term < replica.term:
        return replica, [Reply(Refused(replica.term))]
    if message.term > replica.term or not replica.matched:
        return replica, [Reply(Unmatched(message.term, replica.id))]
    actions: list[Action] = []
    if replica.log.end < message.floor:
        replica = _emptied(replica, message.floor, replica.lineage)
        actions.append(Restart(message.floor, replica.lineage))
    return replica, [*actions, Reply(Began(replica.term, replica.id, replica.log.safe))]


def synced(replica: Follower, end: int) -> Step:
    replica = replace(
        replica, log=replica.log._replace(safe=max(replica.log.safe, min(end, replica.log.end)))
    )
    return replica, [
        Reply(Persisted(replica.term, replica.id, replica.log.safe))
    ] if replica.matched else []


def trimmed(replica: Follower, floor: int) -> Follower:
    return replace(replica, log=replica.log._replace(floor=max(replica.log.floor, floor)))


def _emptied(replica: Follower, floor: int, lineage: str) -> Follower:
    return replace(replica, lineage=lineage, log=Log(floor, floor, floor), checkpoint=floor)


def _cut(replica: Follower, end: int) -> tuple[Follower, list[Action]]:
    if end >= replica.log.end:
        return replica, []
    if end < replica.checkpoint:
        raise CorruptError(
            f"replica {replica.id} differs from its primary at seq {end}, below "
            f"{replica.checkpoint}, up to which all replicas were equal"
        )
    return replace(replica, log=replica.log.cut(end)), [Cut(end)]
