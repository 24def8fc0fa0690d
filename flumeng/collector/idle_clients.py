"""Connections of an executor that nobody reads from: to open one costs more than a small read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from flumeng.journal.client import JournalClient

EACH = 4
SERVERS = 256
KEEP_SECONDS = 60.0


class IdleClients:
    """A few of each server, of the servers that were read from last. Used from any thread.

    ``clock`` gives seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[str, list[JournalClient]] = {}
        """Server -> its connections; who was read from last is last in both."""
        self._used_at: dict[str, float] = {}

    def take(self, address: str) -> JournalClient | None:
        with self._lock:
            kept = self._clients.get(address)
            return kept.pop() if kept else None

    def keep(self, address: str, client: JournalClient) -> None:
        """Keep it for a while, and close what was not used for long or is too much."""
        with self._lock:
            kept = [*self._clients.pop(address, []), client]
            surplus, self._clients[address] = kept[:-EACH], kept[-EACH:]
            self._used_at[address] = now = self._clock()
            for old in list(self._clients):
                if len(self._clients) <= SERVERS and now - self._used_at[old] < KEEP_SECONDS:
                    break
                surplus += self._clients.pop(old)
                del self._used_at[old]
        for each in surplus:
            each.close()
