"""Tries to read, beside all batches, what a batch could not read: in a few threads, for all tasks.

A try that its server lets wait answers for all tries of that server that have not begun, so that
many journals of one hung server do not keep the threads from those of others.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from flumeng.connectors.journals.reader import READ_SECONDS
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import UnavailableError

THREADS = 4
KEEP_SECONDS = 60.0
"""So long it is kept in mind which servers have let a try wait."""


class Probes:
    """``probe`` may be called from any thread and never blocks."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "probe")
        self._lock = threading.Lock()
        self._hung: dict[str, tuple[float, UnavailableError]] = {}

    def probe(self, journal: str, address: str, start: int, end: int) -> Future[None]:
        """Read the first events of [start, end), which is not empty; fails with what
        ``JournalClient.read`` raises when that is not possible."""
        return self._pool.submit(self._probe, journal, address, start, end, time.monotonic())

    def close(self) -> None:
        """Begin no more tries."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _probe(self, journal: str, address: str, start: int, end: int, asked_at: float) -> None:
        with self._lock:
            hung_at, error = self._hung.get(address, (0.0, None))
        if error is not None and asked_at < hung_at:
            raise error
        try:
            with JournalClient(address, READ_SECONDS) as client:
                next(client.read(journal, start, end), None)
        except UnavailableError as error:
            now = time.monotonic()
            with self._lock:
                self._hung[address] = (now, error)
                self._hung = {
                    a: hung for a, hung in self._hung.items() if now - hung[0] < KEEP_SECONDS
                }
            raise
        with self._lock:
            self._hung.pop(address, None)
