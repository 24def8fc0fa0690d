"""Syncs a file now and then, beside the thread that writes it; for journals that do not wait for
the disk before they answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from flumeng.journal.disk import Disk

INTERVAL_SECONDS = 1.0


@dataclass(frozen=True)
class Reached:
    """How far a file was written when its sync began."""

    segment: int
    offset: int
    safe: int


class LazySync:
    """One sync at a time, begun at most once a second. Used by one thread, and has one itself."""

    def __init__(self, disk: Disk, clock: Callable[[], float] = time.monotonic) -> None:
        self._disk = disk
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "journal sync")
        self._running: tuple[Future[None], Reached] | None = None
        self._began_at = clock()

    def begin(self, fd: int, reached: Reached) -> None:
        """Sync the file, unless one runs or it is too early. It stays open until ``settle``."""
        now = self._clock()
        if self._running is None and now - self._began_at >= INTERVAL_SECONDS:
            self._began_at = now
            self._running = (self._pool.submit(self._disk.sync, fd), reached)

    def done(self) -> Reached | None:
        """What a sync that has ended put on disk. Raises OSError when it failed."""
        if self._running is None or not self._running[0].done():
            return None
        return self.settle()

    def settle(self) -> Reached | None:
        """As ``done``, but waits for a sync that runs."""
        if self._running is None:
            return None
        (future, reached), self._running = self._running, None
        future.result()
        return reached

    def close(self) -> None:
        self._pool.shutdown()
