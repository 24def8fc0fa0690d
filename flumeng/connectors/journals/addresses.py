"""Current addresses of journals: ``/journals/J`` names a node, ``/live/nodes/N`` its address.
Entries are reread after ``REREAD_SECONDS``, sooner while a node is not live or a server does not
serve the journal. They are not watched: watches would notify each of n collectors of each of n
nodes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from flumeng.control.zookeeper import Store, Unreadable, Versioned
from flumeng.events.journal_names import is_journal, node_of, worker_of
from flumeng.platform.errors import UnavailableError
from zkschema import paths
from zkschema.records import Record
from zkschema.table import ZPath

log = logging.getLogger(__name__)

REREAD_SECONDS = 60.0
DOUBT_SECONDS = 1.0
DOUBT_MOST_SECONDS = 10.0

V = TypeVar("V")
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class _Cached(Generic[V]):
    """``value`` was read at ``read_at``; due at ``reread_at``, in doubt after ``doubt_seconds``."""

    value: V
    read_at: float
    reread_at: float
    doubt_seconds: float = DOUBT_SECONDS


@dataclass
class Addresses:
    """Cached addresses. Thread-safe; only ``reread`` and ``read`` block. ``clock``: monotonic s."""

    store: Store
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _journals: dict[str, _Cached[str]] = field(default_factory=dict)
    _nodes: dict[str, _Cached[tuple[str, ...]]] = field(default_factory=dict)
    _unreadable: set[str] = field(default_factory=set)

    def of(self, journals: Iterable[str]) -> dict[str, str]:
        """Return host:port by journal; omits unknown journals, and those without a live worker."""
        addresses: dict[str, str] = {}
        for name in journals:
            journal = self._journals.get(name)
            node = self._nodes.get(journal.value) if journal else None
            if journal and node and node.value and is_journal(name):
                address = server_of(name, journal.value, node.value)
                if address:
                    addresses[name] = address
        return addresses

    def due(self, journals: Iterable[str]) -> list[str]:
        """Return the journals whose entry, or whose node's entry, has to be reread now."""
        now = self.clock()
        return [name for name in journals if self._due_at(name) <= now]

    def doubt(self, journals: Iterable[str]) -> None:
        """Make addresses due early, with back-off: they did not serve these journals."""
        with self._lock:
            for name in journals:
                journal = self._journals.get(name)
                if journal is None:
                    continue
                self._journals[name] = _doubted(journal)
                if node := self._nodes.get(journal.value):
                    self._nodes[journal.value] = _doubted(node)

    def reread(self, journals: Iterable[str]) -> bool:
        """Do as ``read``, but ignore UnavailableError. Returns whether an address changed."""
        names = sorted(set(journals))
        before = self.of(names)
        with suppress(UnavailableError):
            self.read(names)
        return self.of(names) != before

    def read(self, journals: Sequence[str]) -> None:
        """Read due journals and nodes. Raises UnavailableError if ZooKeeper does not answer."""
        now = self.clock()
        self._read_journals([name for name in journals if _due(self._journals, name, now)])
        nodes = {journal.value for journal in map(self._journals.get, journals) if journal}
        self._read_nodes(sorted(n for n in nodes if n and _due(self._nodes, n, now)))

    def retain(self, journals: AbstractSet[str]) -> None:
        with self._lock:
            self._journals = {n: entry for n, entry in self._journals.items() if n in journals}
            nodes = {entry.value for entry in self._journals.values()}
            self._nodes = {node: entry for node, entry in self._nodes.items() if node in nodes}

    def _due_at(self, name: str) -> float:
        journal = self._journals.get(name)
        if journal is None:
            return 0.0
        node = self._nodes.get(journal.value)
        return min(journal.reread_at, node.reread_at if node else journal.reread_at)

    def _read_journals(self, names: Sequence[str]) -> None:
        records = self._read([paths.journal(name) for name in names])
        with self._lock:
            for name, record in zip(names, records, strict=True):
                node = record.value.primary if record else ""
                before = self._journals.get(name)
                self._journals[name] = _cached(before, node, self.clock(), whole=bool(node))

    def _read_nodes(self, names: Sequence[str]) -> None:
        records = self._read([paths.live_node(name) for name in names])
        with self._lock:
            for name, record in zip(names, records, strict=True):
                addresses = tuple(record.value.addresses) if record else ()
                whole = bool(addresses) and all(addresses)
                before = self._nodes.get(name)
                self._nodes[name] = _cached(before, addresses, self.clock(), whole=whole)

    def _read(self, znodes: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        """Read the records; an unreadable one is logged and counts as missing."""
        if not znodes:
            return []
        records = self.store.read_each(znodes)
        for path, record in zip(znodes, records, strict=True):
            if not isinstance(record, Unreadable):
                self._unreadable.discard(str(path))
            elif str(path) not in self._unreadable:
                self._unreadable.add(str(path))
                log.error("journals are not read: unreadable record in ZooKeeper: %s", record)
        return [None if isinstance(record, Unreadable) else record for record in records]


def server_of(journal: str, node: str, addresses: Sequence[str]) -> str:
    """Return the address of the journal's worker; the first worker serves other nodes' journals."""
    return addresses[worker_of(journal, len(addresses)) if node_of(journal) == node else 0]


def _due(entries: dict[str, _Cached[V]], name: str, now: float) -> bool:
    return name not in entries or entries[name].reread_at <= now


def _cached(before: _Cached[V] | None, value: V, now: float, *, whole: bool) -> _Cached[V]:
    """Return the new entry; one that is not ``whole`` is reread soon, a changed one resets the
    back-off."""
    reread_at = now + (REREAD_SECONDS if whole else DOUBT_SECONDS)
    if before is None or before.value != value or now >= before.read_at + REREAD_SECONDS:
        return _Cached(value, now, reread_at)
    return _Cached(value, now, reread_at, before.doubt_seconds)


def _doubted(entry: _Cached[V]) -> _Cached[V]:
    """Return the entry, due ``doubt_seconds`` after it was read. The next wait is twice as long."""
    reread_at = entry.read_at + entry.doubt_seconds
    if reread_at >= entry.reread_at:
        return entry
    return replace(
        entry, reread_at=reread_at, doubt_seconds=min(2 * entry.doubt_seconds, DOUBT_MOST_SECONDS)
    )
