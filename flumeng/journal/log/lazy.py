"""Syncs a file now and then, beside the thread that writes it; for journals that do not wait for
the disk before they answer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from flumeng.journal.log.disk import Disk

INTERVAL_SECONDS = 1.0
SYNC_THREADS = 4
OVERDUE_SECONDS = 10.0
"""A sync that runs for longer is waited for: what a crash would lose must not grow without end."""


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """The threads of this process that sync so."""
    return ThreadPoolExecutor(SYNC_THREADS, "sync")


@dataclass(frozen=True)
class Reached:
    """How far a file was written when its sync began."""

    segment: int
    offset: int
    safe: int


class LazySync:
    """One sync at a time, begun at most once a second. Used by one thread at a time."""

    def __init__(self, disk: Disk, clock: Callable[[], float] = time.monotonic) -> None:
        self._disk = disk
        self._clock = clock
        self._running: tuple[Future[None], Reached] | None = None
        self._began_at = clock()

    def begin(self, fd: int, reached: Reached) -> None:
        """Sync the file, unless one runs or it is too early. It stays open until ``settle``."""
        now = self._clock()
        if self._running is None and now - self._began_at >= INTERVAL_SECONDS:
            self._began_at = now
            self._running = (_pool().submit(self._disk.sync, fd), reached)

    def done(self) -> Reached | None:
        """What a sync that has ended, or is overdue, put on disk. Raises OSError when it failed."""
        if self._running is None:
            return None
        if not self._running[0].done() and self._clock() - self._began_at < OVERDUE_SECONDS:
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
        """Return when no sync runs; how it ended nobody wants to know any more."""
        if self._running is not None:
            wait([self._running[0]])
            self._running = None
