"""The cursors of readers that are no flows: a cursor ``C`` at flow ``F`` has a lease
``/leases/F@C``, and what it has not read is kept until the lease has run out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flumeng.control.zookeeper import ReadableStore, Version, Versioned
from zkschema import paths, table
from zkschema.records import Lease

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


def until(lease: Versioned[Lease]) -> float:
    """Seconds since the epoch, by ZooKeeper's clock."""
    return lease.written + lease.value.keep_seconds


class ServerClock:
    """ZooKeeper's time, never ahead of it: from when a znode of this process was last written.
    ``clock`` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written = 0.0
        self._seen_at = 0.0

    def now(self, written: float) -> float:
        """Seconds since the epoch. ``written``: when that znode was written, by ZooKeeper."""
        if written != self._written:
            self._written, self._seen_at = written, self._clock()
        return written + self._clock() - self._seen_at


class Leases:
    """Expired leases, as a master sees them. Leases are renewed all the time, so they are not
    watched, and read once in ``LOOK_SECONDS``. ``clock`` gives seconds that only grow."""

    def __init__(self, store: ReadableStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._look_at = float("-inf")

    def run_out(self, now: float) -> tuple[RunOut, ...]:
        """Those not renewed for as long as they are kept, at ``now`` by ZooKeeper's clock.

        ZooKeeper says when they were renewed: the clocks of readers do not count. Nothing is read
        before the next look is due; expired leases are read at each call until they are removed.
        A lease that cannot be read has not run out.
        """
        if self._clock() < self._look_at:
            return ()
        known = names(self._store)
        found = self._store.read_each([paths.lease(*name) for name in known])
        expired = tuple(
            RunOut(*name, lease.value.reader, lease.version)
            for name, lease in zip(known, found, strict=True)
            if isinstance(lease, Versioned) and until(lease) <= now
        )
        if not expired:
            self._look_at = self._clock() + LOOK_SECONDS
        return expired
