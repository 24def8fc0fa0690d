"""Counts journals of which a reader at another site never learns: they begin and end after its
lease has ended. The count is written with the removal of the journal's record."""

from __future__ import annotations

import uuid
from dataclasses import replace

from flumeng.control.zookeeper import Put, ReadableStore, Versioned
from zkschema import paths
from zkschema.records import Break, Gap, Journal

KEPT_GAPS = 20


def counted(store: ReadableStore, name: str, journal: Versioned[Journal]) -> Put | None:
    """Return the write that adds a removed journal to the breaks whose readers are away, if there
    are any, and if it began after their leases had ended."""
    path = paths.breaks(journal.value.flow)
    found = store.read_each([path])[0]
    if not isinstance(found, Versioned):  # nodes of a secured cluster may not read it
        return None
    cursors = {
        cursor: _with(broke, name, journal) if broke.away else broke
        for cursor, broke in found.value.cursors.items()
    }
    changed = cursors != dict(found.value.cursors)
    return Put(path, replace(found.value, cursors=cursors), found.version) if changed else None


def _with(broke: Break, name: str, journal: Versioned[Journal]) -> Break:
    end = journal.value.end
    if not broke.newest or journal.created <= broke.newest or not end:
        return broke
    gaps = (*broke.gaps, Gap(journal=name, start=0, end=end))[-KEPT_GAPS:]
    return replace(broke, id=uuid.uuid4().hex[:12], events=broke.events + end, gaps=gaps)
