"""Cursors of other readers at flows, for which journals keep events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.control.queries.acks import Positions
from flumeng.control.queries.reading import Reading
from flumeng.control.snapshot import partitions
from flumeng.control.snapshot.journal_registry import journals
from flumeng.control.snapshot.leases import until as kept_until
from flumeng.control.zookeeper import Found, ReadableStore, Unreadable, Versioned
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Journal


@dataclass(frozen=True)
class CursorRow:
    """``until``: seconds since the epoch, None for a flow. ``lag``: events kept for it."""

    flow: str
    cursor: str
    reader: str
    until: float | None
    journals: int
    lag: int | None
    problem: str = ""


def cursors(source: ReadableStore, where: Positions) -> list[CursorRow]:
    """One row for each cursor that is not a flow's own."""
    reading = Reading.of(source)
    flows = reading.children(paths.flows())
    listed = reading.children_many([paths.acks(flow) for flow in flows])
    keys = [
        (flow, name)
        for flow, names in zip(flows, listed, strict=True)
        for name in names
        if name != CURSOR_MAIN
    ]
    leases = reading.read_each([paths.lease(*key) for key in keys])
    registered: defaultdict[str, dict[str, Journal]] = defaultdict(dict)
    for journal, record in (journals(reading) if keys else {}).items():
        registered[record.flow][journal] = record
    wanted = [(*key, journal) for key in keys for journal in registered[key[0]]]
    acks = dict(zip(wanted, reading.read_each([paths.ack(*it) for it in wanted]), strict=True))
    rows = []
    for (flow, name), lease in zip(keys, leases, strict=True):
        known = lease.value if isinstance(lease, Versioned) else None
        own = registered[flow]
        row = CursorRow(
            flow=flow,
            cursor=name,
            reader=known.reader if known else f"flow {name}" if name in flows else "",
            until=kept_until(lease) if isinstance(lease, Versioned) else None,
            journals=len(own),
            lag=_lag(own, {journal: acks[flow, name, journal] for journal in own}, where),
            problem=str(lease) if isinstance(lease, Unreadable) else "",
        )
        rows.append(row)
    return rows


def _lag(
    journals: Mapping[str, Journal], acks: Mapping[str, Found[Ack]], where: Positions
) -> int | None:
    """Events in the journals that the cursor has not read; None when unknown."""
    lag = 0
    for journal, record in journals.items():
        end, ack = where.end_of(journal, partitions.of_journal(record)), acks[journal]
        if end is None or isinstance(ack, Unreadable):
            return None
        lag += max(0, end - (ack.value.emitted if ack else 0))
    return lag
