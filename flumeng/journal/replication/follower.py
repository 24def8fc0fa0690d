"""A copy of a journal, as its node sees it: what it takes, and from whom.

It obeys the latest term that it has heard of, and says so on disk before it answers (I5). Of what
it holds it removes nothing because a new term has come: only when that term's primary has told with
what log it began, and then only what that log does not have (I11, I13). Nothing of that was
answered, since the primary of each term was in sync before.
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
    """Put the term on disk before what follows."""

    term: int


class Cut(NamedTuple):
    """Remove the events from ``end`` on, on disk before what follows."""

    end: int


class Restart(NamedTuple):
    """Remove all events, on disk before what follows; the next has the seq ``floor``."""

    floor: int
    lineage: str


class Write(NamedTuple):
    """Append the message's events from ``start`` on; a sync is due after it."""

    start: int
    end: int


class Keep(NamedTuple):
    """Events below ``acked`` may go; those below ``checkpoint`` are on every copy in sync."""

    checkpoint: int
    acked: int


class Reply(NamedTuple):
    message: ToPrimary


Action = Fence | Cut | Restart | Write | Keep | Reply


@dataclass(frozen=True, slots=True)
class Copy:
    """``log.safe``: its local checkpoint, persisted (I2). ``checkpoint``: what it knows of the
    global one, never above its own (I7). ``matched``: its log is the beginning of what the primary
    of ``term`` has; what it holds counts for nothing in that term before."""

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


Step = tuple[Copy, list[Action]]


def begin(copy: Copy, message: Begin) -> Step:
    """Raises CorruptError when its log differs from a copy in sync below the checkpoint: it is to
    be made again."""
    if message.term < copy.term:
        return copy, [Reply(Refused(copy.term))]
    actions: list[Action] = []
    if message.term > copy.term:
        copy = replace(copy, term=message.term, matched=False)
        actions.append(Fence(message.term))
    if not copy.matched:
        # With an event of this term it has matched in it before.
        matched = copy.log.last_term == copy.term
        end = copy.log.end if matched else agreed(copy.log, message.log)
        floor = message.log.floor
        # What lies below the primary's floor can not be compared, and is acked.
        if message.lineage != copy.lineage or copy.log.floor < end == floor:
            copy = _emptied(copy, floor, message.lineage)
            actions.append(Restart(floor, message.lineage))
        else:
            copy, cut = _cut(copy, end)
            actions += cut
        copy = replace(copy, log=copy.log._replace(safe=copy.log.end), matched=True)
    return copy, [*actions, Reply(Began(copy.term, copy.id, copy.log.safe))]


def take(copy: Copy, message: Frames) -> Step:
    """``synced`` answers for what it writes."""
    if message.term < copy.term:
        return copy, [Reply(Refused(copy.term))]
    if message.term > copy.term or not copy.matched:
        return copy, [Reply(Unmatched(message.term, copy.id))]
    if message.start > copy.log.end:
        return copy, [Reply(Persisted(copy.term, copy.id, copy.log.safe, gap=True))]
    start, actions = copy.log.end, list[Action]()
    if message.end > start:
        copy = replace(copy, log=copy.log.extended(message.terms, message.end))
        actions.append(Write(start, message.end))
    known = max(copy.checkpoint, min(message.checkpoint, copy.log.safe))
    copy = replace(copy, checkpoint=known)
    actions.append(Keep(known, min(message.acked, known)))
    if not message.end > start:
        actions.append(Reply(Persisted(copy.term, copy.id, copy.log.safe)))
    return copy, actions


def reset(copy: Copy, message: Reset) -> Step:
    if message.term < copy.term:
        return copy, [Reply(Refused(copy.term))]
    if message.term > copy.term or not copy.matched:
        return copy, [Reply(Unmatched(message.term, copy.id))]
    actions: list[Action] = []
    if copy.log.end < message.floor:
        copy = _emptied(copy, message.floor, copy.lineage)
        actions.append(Restart(message.floor, copy.lineage))
    return copy, [*actions, Reply(Began(copy.term, copy.id, copy.log.safe))]


def synced(copy: Copy, end: int) -> Step:
    """Events below ``end`` are on disk."""
    copy = replace(copy, log=copy.log._replace(safe=max(copy.log.safe, min(end, copy.log.end))))
    return copy, [Reply(Persisted(copy.term, copy.id, copy.log.safe))] if copy.matched else []


def trimmed(copy: Copy, floor: int) -> Copy:
    """The log now begins at ``floor``."""
    return replace(copy, log=copy.log._replace(floor=max(copy.log.floor, floor)))


def _emptied(copy: Copy, floor: int, lineage: str) -> Copy:
    return replace(copy, lineage=lineage, log=Log(floor, floor, floor), checkpoint=floor)


def _cut(copy: Copy, end: int) -> tuple[Copy, list[Action]]:
    if end >= copy.log.end:
        return copy, []
    if end < copy.checkpoint:
        raise CorruptError(
            f"copy {copy.id} differs from its primary at seq {end}, below {copy.checkpoint}, up to "
            "where all copies were the same"
        )
    return replace(copy, log=copy.log.cut(end)), [Cut(end)]
