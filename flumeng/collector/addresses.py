"""Where journals are served now: ``/journals/J`` names a node, ``/live/nodes/N`` its address.

Shared by all tasks of the process. What was read is used until a watch says that something changed,
or for ``LOOK_SECONDS``; while ZooKeeper is away it is used on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

from flumeng.errors import UnavailableError
from flumeng.journal.names import worker_of
from flumeng.store import Store
from zkschema import paths

LOOK_SECONDS = 10.0


class Addresses:
    """May be used from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._changes = 0
        self._seen = -1
        self._look_at = 0.0
        self._primaries: dict[str, str] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        store.watch(paths.live_nodes(), self._on_change)
        store.watch(paths.journals(), self._on_change)

    def of(self, journals: Iterable[str]) -> Mapping[str, str]:
        """Journal -> host:port. Lacks those whose node is not live or serves nothing yet."""
        wanted = sorted(journals)
        with self._lock:
            self._look_if_needed(wanted)
            found = {name: self._address(name) for name in wanted}
        return {name: address for name, address in found.items() if address}

    def _address(self, journal: str) -> str:
        addresses = self._addresses.get(self._primaries.get(journal, ""), ())
        return addresses[worker_of(journal, len(addresses))] if addresses else ""

    def _on_change(self, _path: str) -> None:
        self._changes += 1

    def _look_if_needed(self, wanted: list[str]) -> None:
        known = all(name in self._primaries for name in wanted)
        if known and self._seen == self._changes and time.monotonic() < self._look_at:
            return
        changes = self._changes
        try:
            self._look(wanted)
        except UnavailableError:
            return
        self._seen = changes
        self._look_at = time.monotonic() + LOOK_SECONDS

    def _look(self, wanted: list[str]) -> None:
        names = sorted({*wanted, *self._primaries})
        journals = self._store.read_many([paths.journal(name) for name in names])
        primaries = {
            name: journal.value.primary if journal else ""
            for name, journal in zip(names, journals, strict=True)
        }
        nodes = sorted({node for node in primaries.values() if node})
        live = self._store.read_many([paths.live_node(node) for node in nodes])
        self._addresses = {
            node: found.value.addresses for node, found in zip(nodes, live, strict=True) if found
        }
        self._primaries = primaries
