"""The cursors of readers that are no flows: a cursor ``C`` at flow ``F`` has a lease
``/leases/F@C``, and what it has not read is kept until the lease has run out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flumeng.store import ReadableStore, Unreadable, Version
from zkschema import paths, table

LOOK_SECONDS = 60.0


@dataclass(frozen=True)
class RunOut:
    """A lease that was not renewed in time, as it was seen at ``version``."""

    flow: str
    cursor: str
    reader: str
    version: Version


def names(store: ReadableStore) -> list[tuple[str, str]]:
    """Flow and cursor of every lease. Raises UnavailableError."""
    folder = paths.leases()
    found = (table.lease.matches(f"{folder}/{name}") for name in store.children(folder))
    return [(flow, cursor) for flow, cursor in filter(None, found)]


class Leases:
    """What a master sees of them, seldom: they are renewed all the time, so nobody watches them.
    ``clock`` gives seconds that only grow."""

    def __init__(self, store: ReadableStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._look_at = float("-inf")

    def run_out(self, now: float) -> tuple[RunOut, ...]:
        """Those that have run out at ``now``, seconds since the epoch. Leases are read once in
        ``LOOK_SECONDS``, and at each call until the expired ones are removed. One that cannot be
        read has not run out."""
        if self._clock() < self._look_at:
            return ()
        known = names(self._store)
        found = self._store.read_each([paths.lease(*name) for name in known])
        expired = tuple(
            RunOut(*name, lease.value.reader, lease.version)
            for name, lease in zip(known, found, strict=True)
            if lease is not None and not isinstance(lease, Unreadable) and lease.value.until <= now
        )
        if not expired:
            self._look_at = self._clock() + LOOK_SECONDS
        return expired
