"""Where journals are served now: ``/journals/J`` names a node, ``/live/nodes/N`` its address.

Shared by all tasks of the process. What was read is used for ``LOOK_SECONDS``; it is read again
soon when nobody serves the journal yet, or when a task has found that the place is wrong. Nothing
is watched: each of n collectors would hear of each of n nodes. While ZooKeeper is away, what is
known is used on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flumeng.errors import UnavailableError
from flumeng.journal.names import worker_of
from flumeng.store import Store
from zkschema import paths

LOOK_SECONDS = 60.0
DOUBT_SECONDS = 1.0


@dataclass(frozen=True)
class Found:
    """``address`` is empty when nobody serves the journal."""

    address: str
    looked_at: float
    look_at: float


class Addresses:
    """May be used from any thread. ``clock`` gives seconds that only grow."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Found] = {}

    def of(self, journals: Iterable[str]) -> Mapping[str, str]:
        """Journal -> host:port. Lacks those whose node is not live or serves nothing yet."""
        wanted = sorted(journals)
        with self._lock:
            now = self._clock()
            due = [name for name in wanted if not self._known_at(name, now)]
            if due:
                self._look(due, now)
            found = {name: self._known[name].address for name in wanted if name in self._known}
        return {name: address for name, address in found.items() if address}

    def invalidate(self, journals: Iterable[str]) -> None:
        """They could not be read where ``of`` said: look again, but not all the time."""
        with self._lock:
            for name in journals:
                found = self._known[name]
                self._known[name] = replace(found, look_at=found.looked_at + DOUBT_SECONDS)

    def _known_at(self, journal: str, now: float) -> bool:
        return journal in self._known and now < self._known[journal].look_at

    def _look(self, wanted: Sequence[str], now: float) -> None:
        try:
            journals = self._store.read_many([paths.journal(name) for name in wanted])
            nodes = sorted({journal.value.primary for journal in journals if journal})
            live = self._store.read_many([paths.live_node(node) for node in nodes])
        except UnavailableError:
            return
        served = {
            node: found.value.addresses for node, found in zip(nodes, live, strict=True) if found
        }
        for name, journal in zip(wanted, journals, strict=True):
            addresses = served.get(journal.value.primary, ()) if journal else ()
            address = addresses[worker_of(name, len(addresses))] if addresses else ""
            look_at = now + (LOOK_SECONDS if address else DOUBT_SECONDS)
            self._known[name] = Found(address, now, look_at)
