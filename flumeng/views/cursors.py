"""Who reads flows besides themselves: each has a cursor there, for which journals keep events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.state import partitions
from flumeng.state.journal_registry import journals
from flumeng.store import ReadableStore, Unreadable, Versioned
from flumeng.views.overview import Positions
from flumeng.views.reading import Reading
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Journal


@dataclass(frozen=True)
class CursorRow:
    """``until`` is in seconds since the epoch, None for a flow, for which all is kept. ``lag``:
    events that are kept for it; None while nobody says how far some journal reaches."""

    flow: str
    cursor: str
    reader: str
    until: float | None
    journals: int
    lag: int | None
    problem: str = ""


def cursors(source: ReadableStore | Reading, where: Positions) -> list[CursorRow]:
    """One row for each cursor that is not a flow's own, of all flows."""
    reading = Reading.of(source)
    flows = reading.children(paths.flows())
    listed = reading.children_many([paths.acks(flow) for flow in flows])
    keys = [
        (flow, name)
        for flow, names in zip(flows, listed, strict=True)
        for name in names
        if name != CURSOR_MAIN
    ]
    found = reading.read_each([paths.lease(*key) for key in keys])
    registered = journals(reading) if keys else {}
    rows = []
    for (flow, name), lease in zip(keys, found, strict=True):
        known = lease.value if isinstance(lease, Versioned) else None
        own = {journal: one for journal, one in registered.items() if one.flow == flow}
        row = CursorRow(
            flow=flow,
            cursor=name,
            reader=known.reader if known else f"flow {name}" if name in flows else "",
            until=known.until if known else None,
            journals=len(own),
            lag=_lag(reading, (flow, name), own, where),
            problem=str(lease) if isinstance(lease, Unreadable) else "",
        )
        rows.append(row)
    return rows


def _lag(
    reading: Reading, key: tuple[str, str], journals: Mapping[str, Journal], where: Positions
) -> int | None:
    """Events that the journals have and the cursor has not read; None when nobody knows."""
    acks = reading.read_each([paths.ack(*key, journal) for journal in journals])
    lag = 0
    for (journal, record), ack in zip(journals.items(), acks, strict=True):
        end = where.end_of(journal, partitions.of_journal(record))
        if end is None or isinstance(ack, Unreadable):
            return None
        lag += max(0, end - (ack.value.emitted if ack else 0))
    return lag
