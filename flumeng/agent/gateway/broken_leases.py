"""Finds why leases broke, for the gap records of their readers. A break is recorded before its
events are trimmed, so records are read again when a floor has moved."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.control.commands import lease_breaks
from flumeng.control.zookeeper import Store
from flumeng.journal.log.contract import Position
from zkschema.records import Break

KEPT = 1000
"""Flows whose breaks are kept; with more all are read again."""


class BrokenLeases:
    """Thread-safe: a lost update is read again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[Mapping[str, int], Mapping[str, Break]]] = {}

    def of(self, flow: str, site: str, positions: Mapping[str, Position]) -> dict[str, str]:
        """Return, by flow of ``site`` that reads this one, why its lease broke. Raises
        UnavailableError."""
        floors = {name: at.floor for name, at in positions.items()}
        known, breaks = self._known.get(flow, (None, {}))
        if floors != known:
            breaks = lease_breaks.of_flow(self._store, flow)
            if len(self._known) >= KEPT:
                self._known = {}
            self._known[flow] = floors, breaks
        prefix = f"{site}:"
        return {
            cursor.removeprefix(prefix): broke.why
            for cursor, broke in breaks.items()
            if cursor.startswith(prefix)
        }
