"""Journals of a flow for readers with their own cursor: names, servers and ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import cast

from flumeng.connectors.journals.addresses import Addresses
from flumeng.control.snapshot import journal_registry
from flumeng.control.zookeeper import Store
from flumeng.events.journal_names import flow_of, is_journal
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError
from zkschema import paths
from zkschema.records import Journal

ANSWER_SECONDS = 1.5
LISTED_SECONDS = 1.0
THREADS = 16


class _Listing:
    """Names of all journals, listed once for all flows of a process; thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._at = float("-inf")

    def names(self) -> list[str]:
        """Return the names, at most ``LISTED_SECONDS`` old. Raises UnavailableError."""
        with self._lock:
            if time.monotonic() - self._at > LISTED_SECONDS:
                self._names = self._store.children(paths.journals())
                self._at = time.monotonic()
            return self._names


_listing_of = lru_cache(maxsize=1)(_Listing)


class FlowJournals:
    """Journals of one flow. ``connect`` opens a client. Methods may raise UnavailableError."""

    def __init__(
        self,
        flow: str,
        store: Store,
        connect: Callable[[str], JournalClient] = lambda a: JournalClient(a, ANSWER_SECONDS),
    ) -> None:
        self._flow = flow
        self._store = store
        self._listing = _listing_of(cast("Hashable", store))
        self._connect = connect
        self._threads = ThreadPoolExecutor(THREADS, "journal servers")

    def registered(self) -> dict[str, Journal]:
        """Return registrations by journal; an unreadable one is derived from the name."""
        listed = [name for name in self._listing.names() if flow_of(name) == self._flow]
        znodes = [paths.journal(name) for name in sorted(filter(is_journal, listed))]
        return {
            path.name: journal_registry.record_or_derived(path, record)
            for path, record in zip(znodes, self._store.read_each(znodes), strict=True)
            if record is not None
        }

    def addresses(self, journals: Collection[str]) -> dict[str, str]:
        addresses = Addresses(self._store)
        addresses.read(sorted(journals))
        return addresses.of(journals)

    def positions(self, addresses: Mapping[str, str]) -> dict[str, Position]:
        """Return the ends of journals at ``addresses``; omits those of silent servers."""
        servers = sorted(set(addresses.values()))
        answers = dict(zip(servers, self._threads.map(self._ask, servers), strict=True))
        return {
            name: position
            for name, address in addresses.items()
            if (position := answers[address].get(name)) is not None
        }

    def require_readable(self, journal: str) -> None:
        """Raise DeniedError when this process may not read the journal; ignore silent servers."""
        address = self.addresses([journal]).get(journal)
        if address is not None:
            with suppress(UnavailableError, CorruptError), self._connect(address) as client:
                next(client.read(journal, 0, 0), None)

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """Return by journal the event's time, if readable, in epoch microseconds."""
        addresses = self.addresses(at)

        def time_of(name: str) -> int | None:
            with suppress(FlumengError), self._connect(addresses[name]) as client:
                for batch in client.read(name, at[name], at[name] + 1):
                    return int(batch["ts"].cast("int64")[0].as_py())
            return None

        moments = zip(addresses, self._threads.map(time_of, addresses), strict=True)
        return {name: moment for name, moment in moments if moment is not None}

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _ask(self, address: str) -> Mapping[str, Position]:
        with suppress(UnavailableError, CorruptError), self._connect(address) as client:
            return client.positions()
        return {}
