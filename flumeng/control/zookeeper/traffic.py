"""Counters of a store's connection, for metrics."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flumeng.platform.errors import ConflictError, UnavailableError
from flumeng.platform.metrics import table
from flumeng.platform.metrics.histogram import Histogram
from flumeng.platform.metrics.table import Reading

DONE, CONFLICT, UNAVAILABLE, REFUSED = "done", "conflict", "unavailable", "refused"


class Traffic:
    """Counts transactions and znodes read. Thread-safe."""

    def __init__(self) -> None:
        self._transactions: Counter[str] = Counter({DONE: 0, CONFLICT: 0, UNAVAILABLE: 0})
        self._seconds = Histogram()
        self._read = 0
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self, sent_at: float | None = None) -> Iterator[None]:
        """Count and time a transaction from ``sent_at`` (of ``time.perf_counter``) or from now."""
        began = time.perf_counter() if sent_at is None else sent_at
        outcome = REFUSED
        try:
            yield
            outcome = DONE
        except ConflictError:
            outcome = CONFLICT
            raise
        except UnavailableError:
            outcome = UNAVAILABLE
            raise
        finally:
            self._seconds.add(time.perf_counter() - began)
            with self._lock:
                self._transactions[outcome] += 1

    def read(self, znodes: int) -> None:
        with self._lock:
            self._read += znodes

    def readings(self, is_connected: Callable[[], bool]) -> Iterator[Reading]:
        yield table.ZOOKEEPER_CONNECTED.of(is_connected())
        for outcome, count in list(self._transactions.items()):
            yield table.ZOOKEEPER_TRANSACTIONS.of(count, outcome)
        yield table.ZOOKEEPER_SECONDS.of(self._seconds)
        yield table.ZOOKEEPER_READ.of(self._read)
