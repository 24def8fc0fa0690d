"""Refuses appends to journals that may lack events that readers have seen.

After a restore of the data directory or its disk, new events would get the numbers of lost ones,
and readers would skip them. So a journal from before the node's start takes events only if the
directory is not restored, and its ack is known and not above its end; otherwise a new one is begun.
Another replica in sync may have the lost events of a replicated journal, and should lead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from flumeng.agent.node.protocol import Message
from flumeng.journal.log.contract import Log
from flumeng.journal.replicas.replicas import Replicas
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.platform.errors import UnavailableError

log = logging.getLogger(__name__)

RESTORED = "the data directory was copied or restored while its node ran; events may be missing"
UNKNOWN = "the acks of the journal were unknown when the node started"


class _Refusal(NamedTuple):
    why: str
    older: bool


class RestoredJournals:
    """Decides which journals may lack events that readers have seen. Thread-safe."""

    def __init__(self, journals: Callable[[], Mapping[str, Log]], replicas: Replicas) -> None:
        self._journals, self._replicas = journals, replicas
        self._seen: Mapping[str, int | None] = {}
        self._restored = False
        self._refused: Mapping[str, _Refusal] = {}
        self._closing: Mapping[str, ReplicatedJournal] = {}

    def tell(self, seen: Mapping[str, int | None], *, restored: bool) -> None:
        """Set the state at the node's start. ``seen``: the highest offset read of each journal,
        None when unknown. ``restored``: the directory is a copy or a backup."""
        replicas = self._replicas.journals
        if restored and not self._restored:
            self._closing = {name: replica for name, replica in replicas.items() if replica.closes}
            for replica in self._closing.values():
                replica.mark_damaged(RESTORED)
        self._seen, self._restored = dict(seen), restored
        for journal in replicas.values():
            refusal = None if journal.closes else self._refusal(journal)
            if refusal is not None and refusal.older:
                journal.older = refusal.why

    def refuses(self, journal: Log) -> bool:
        """Return whether a journal may lack events; it is then closed for appends. A replicated one
        raises UnavailableError while its ack is unknown, or another replica may have the events."""
        refusal = self._refusal(journal)
        if refusal is None:
            return False
        if isinstance(journal, ReplicatedJournal) and not (refusal.older and journal.is_alone):
            raise UnavailableError(f"journal {journal.id} takes no events yet: {refusal.why}")
        end = journal.close_for_appends()
        self._refused = {**self._refused, journal.id: refusal}
        level = logging.ERROR if refusal.older else logging.WARNING
        text = "journal %s ends at seq %d: %s; the flow's sources continue there in a new journal"
        log.log(level, text, journal.id, end, refusal.why)
        return True

    def was_refused(self, name: str) -> bool:
        return name in self._refused

    @property
    def refused(self) -> Message:
        """The refused journals with reasons, as reported to the node. ``settled``: the mark of a
        restored directory is no longer needed for this journal."""
        journals = self._journals()
        refusals = {
            name: {**refusal._asdict(), "settled": True}
            for name, refusal in self._refused.items()
            if name in journals
        }
        for name, journal in self._replicas.journals.items():
            if journal.older and name in self._seen and name not in refusals:
                refusals[name] = {"why": journal.older, "older": True, "settled": journal.closed}
        for name, replica in self._closing.items():
            if self._replicas.journals.get(name) is replica:
                refusals[name] = {"why": RESTORED, "older": True, "settled": False}
        return refusals

    def _refusal(self, journal: Log) -> _Refusal | None:
        if journal.id not in self._seen:
            return None
        if self._restored:
            return _Refusal(RESTORED, older=True)
        seen = self._seen[journal.id]
        if seen is None:
            return _Refusal(UNKNOWN, older=False)
        if seen <= journal.next_seq:
            return None
        return _Refusal(
            f"readers have seen events up to seq {seen}, but the journal ends at "
            f"{journal.next_seq}: the data directory was restored, or its disk has lost events",
            older=True,
        )
