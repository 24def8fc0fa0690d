"""Leases ``/leases/FLOW@CURSOR`` of external readers; until one expires, unread events are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flumeng.control.zookeeper import ReadableStore, Version, Versioned
from zkschema import paths, table
from zkschema.records import Lease

READ_SECONDS = 60.0
ENDED_SECONDS = 1.0
"""``keep_seconds`` of a lease whose reader has ended it; masters remove it soon."""


@dataclass(frozen=True)
class ExpiredLease:
    """An expired lease, and the ``version`` at which it was read."""

    flow: str
    cursor: str
    reader: str
    version: Version


def names(store: ReadableStore) -> list[tuple[str, str]]:
    """Return the flow and cursor of every lease."""
    folder = paths.leases()
    matches = (table.lease.matches(f"{folder}/{name}") for name in store.children(folder))
    return [(flow, cursor) for flow, cursor in filter(None, matches)]


def until(lease: Versioned[Lease]) -> float:
    """Return when the lease expires: seconds since the epoch, by ZooKeeper's clock."""
    return lease.written + lease.value.keep_seconds


class ServerClock:
    """Estimates ZooKeeper's time, never too high, from the last write of this process's znode."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written = 0.0
        self._seen_at = 0.0

    def now(self, written: float) -> float:
        """Return the seconds since the epoch. ``written``: ZooKeeper's time of the last write."""
        if written != self._written:
            self._written, self._seen_at = written, self._clock()
        return written + self._clock() - self._seen_at


class Leases:
    """Reads leases without a watch: every ``READ_SECONDS``, at each call while one is expired."""

    def __init__(self, store: ReadableStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._read_at = float("-inf")

    def expired(self, now: float) -> tuple[ExpiredLease, ...]:
        """Return the leases expired by ``now``, ZooKeeper's time; none when no read is due. They
        are returned by each call until they are removed. An unreadable lease has not expired."""
        if self._clock() < self._read_at:
            return ()
        cursors = names(self._store)
        leases = self._store.read_each([paths.lease(*cursor) for cursor in cursors])
        expired = tuple(
            ExpiredLease(*cursor, lease.value.reader, lease.version)
            for cursor, lease in zip(cursors, leases, strict=True)
            if isinstance(lease, Versioned) and until(lease) <= now
        )
        if not expired:
            self._read_at = self._clock() + READ_SECONDS
        return expired
