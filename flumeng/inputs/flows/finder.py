"""What the discovery task of a flow does for its source ``flow``: it finds the other flow's
journals.

A journal begins where it is read from when its server says how far it reaches, and not before: the
cursor that was made with the flow keeps all that has not been read. One that is closed ends where
its registration says, and is gone when nobody needs it any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import cast

from flumeng.errors import CorruptError, FlumengError, UnavailableError, UserError
from flumeng.inputs.finding import Before, Bounds, Findings, Offer
from flumeng.journal.client import JournalClient
from flumeng.journal.names import flow_of, is_journal, worker_of
from flumeng.journal.position import Position
from flumeng.spec.flow_source import FlowSource
from flumeng.state import journal_registry
from flumeng.state.partitions import FLOW, input_of, journal_of, subscribed
from flumeng.store import Store, Versioned
from zkschema import paths
from zkschema.records import Journal

ANSWER_SECONDS = 1.5
LISTED_SECONDS = 1.0
THREADS = 16
MOST_TIMES = 64
"""Of more partitions the times are not asked for."""


class _Listing:
    """The names of all journals of the cluster, listed once for all finders of a process. ``names``
    may be called from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._at = float("-inf")

    def names(self) -> list[str]:
        """Those of at most ``LISTED_SECONDS`` ago. Raises UnavailableError."""
        with self._lock:
            if time.monotonic() - self._at > LISTED_SECONDS:
                self._names = self._store.children(paths.journals())
                self._at = time.monotonic()
            return self._names


@lru_cache(maxsize=1)
def _listing_of(store: Hashable) -> _Listing:
    return _Listing(cast("Store", store))


class FlowFinder:
    """See ``Finder``. ``connect`` opens a client to a server."""

    def __init__(
        self,
        options: FlowSource,
        store: Store,
        connect: Callable[[str], JournalClient] = lambda a: JournalClient(a, ANSWER_SECONDS),
    ) -> None:
        self._flow = options.name
        self._latest = options.start_from == "latest"
        self._store = store
        self._listing = _listing_of(cast("Hashable", store))
        self._connect = connect
        self._threads = ThreadPoolExecutor(THREADS, "journal servers")

    @classmethod
    def of(cls, options: FlowSource, store: Store) -> FlowFinder:
        return cls(options, store)

    def find(self, before: Before) -> Findings:
        known = self._mine(before.partitions)
        journals = self._journals()
        fresh = [name for name in journals if name not in known]
        reached = self._bounds(fresh) if fresh else {}
        at_end = self._latest and before.scope is None
        offers = {
            subscribed(name): Offer(
                start=(reached[name].safe if at_end else reached[name].floor)
                if name in reached
                else 0,
                end=(journal.end or 0) if journal.closed else None,
            )
            for name, journal in journals.items()
            if name in known or name in reached
        }
        silent = [name for name in fresh if name not in reached]
        return Findings(
            offers,
            scope=(f"flow {self._flow}",),
            gone=frozenset(subscribed(name) for name in known - journals.keys()),
            troubles=tuple(f"the server of the journal {name} does not answer" for name in silent),
            lacks=() if journals or self._is_there() else (f"there is no flow {self._flow}",),
        )

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        found = self._bounds(self._mine(partitions))
        return {subscribed(name): bounds for name, bounds in found.items()}

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        if to not in ("earliest", "latest"):
            raise UserError("a flow is read from earliest, latest or an offset, not from a time")
        found = self.bounds(partitions)
        return {name: one.floor if to == "earliest" else one.safe for name, one in found.items()}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        names = self._mine(at)
        if not names or len(names) > MOST_TIMES:
            return {}
        addresses = self._addresses(names)

        def time_of(name: str) -> int | None:
            offset = at[subscribed(name)]
            with suppress(FlumengError), self._connect(addresses[name]) as client:
                for batch in client.read(name, offset, offset + 1):
                    return int(batch["ts"].cast("int64")[0].as_py())
            return None

        found = zip(addresses, self._threads.map(time_of, addresses), strict=True)
        return {subscribed(name): moment for name, moment in found if moment is not None}

    def finished(self) -> None:
        """Nobody has to know."""

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _is_there(self) -> bool:
        return self._store.exists(paths.flow(self._flow))

    def _mine(self, partitions: Iterable[str]) -> set[str]:
        """The journals among the partitions that are of the flow that is read."""
        names = {journal_of(name) for name in partitions if input_of(name) == FLOW}
        return {name for name in names if flow_of(name) == self._flow}

    def _journals(self) -> dict[str, Journal]:
        """Those of the flow that is read. One that cannot be read is what its name says of it."""
        listed = [name for name in self._listing.names() if flow_of(name) == self._flow]
        wanted = [paths.journal(name) for name in sorted(filter(is_journal, listed))]
        return {
            path.name: journal_registry.as_known(path, record)
            for path, record in zip(wanted, self._store.read_each(wanted), strict=True)
            if record is not None
        }

    def _addresses(self, journals: Iterable[str]) -> dict[str, str]:
        """Where each is served; lacks those whose node is not live."""
        names = sorted(journals)
        records = self._store.read_each([paths.journal(name) for name in names])
        nodes = {
            name: record.value.primary
            for name, record in zip(names, records, strict=True)
            if isinstance(record, Versioned)
        }
        listed = sorted(set(nodes.values()))
        lives = self._store.read_each([paths.live_node(node) for node in listed])
        served = {
            node: live.value.addresses
            for node, live in zip(listed, lives, strict=True)
            if isinstance(live, Versioned) and live.value.addresses
        }
        return {
            name: served[node][worker_of(name, len(served[node]))]
            for name, node in nodes.items()
            if node in served
        }

    def _bounds(self, journals: Iterable[str]) -> dict[str, Bounds]:
        """Lacks those of servers that do not answer."""
        addresses = self._addresses(journals)
        servers = sorted(set(addresses.values()))
        answers = dict(zip(servers, self._threads.map(self._ask, servers), strict=True))
        return {
            name: Bounds(position.floor, position.safe)
            for name, address in addresses.items()
            if (position := answers[address].get(name)) is not None
        }

    def _ask(self, address: str) -> Mapping[str, Position]:
        with suppress(UnavailableError, CorruptError), self._connect(address) as client:
            return client.positions()
        return {}
