"""A pool of idle connections of an executor: opening one costs more than a small batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Client(Protocol):
    def close(self) -> object: ...


K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Client)

EACH = 4
SERVERS = 256
KEEP_SECONDS = 60.0


class ConnectionPool(Generic[K, C]):
    """Up to ``each`` idle clients for each of the SERVERS last used servers. ``keep`` closes others
    and clients of servers unused for KEEP_SECONDS. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, each: int = EACH) -> None:
        self._each = each
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[K, list[C]] = {}
        """Clients by server; servers and clients are in the order in which ``keep`` got them."""
        self._used_at: dict[K, float] = {}

    def take(self, server: K) -> C | None:
        with self._lock:
            kept = self._clients.get(server)
            return kept.pop() if kept else None

    def keep(self, server: K, client: C) -> None:
        with self._lock:
            kept = [*self._clients.pop(server, []), client]
            surplus, self._clients[server] = kept[: -self._each], kept[-self._each :]
            self._used_at[server] = now = self._clock()
            for old in list(self._clients):
                if len(self._clients) <= SERVERS and now - self._used_at[old] < KEEP_SECONDS:
                    break
                surplus += self._clients.pop(old)
                del self._used_at[old]
        for each in surplus:
            each.close()
