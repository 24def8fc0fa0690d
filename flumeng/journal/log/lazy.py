"""Syncs a file now and then beside its writer, for journals that acknowledge before the sync."""

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
"""A sync that runs longer is waited for, which bounds what a crash loses."""


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SYNC_THREADS, "sync")


@dataclass(frozen=True)
class Reached:
    """How far a file was written when its sync began."""

    segment: int
    offset: int
    safe: int


class LazySync:
    """One sync at a time, begun at most once a second. For one thread at a time."""

    def __init__(self, disk: Disk, clock: Callable[[], float] = time.monotonic) -> None:
        self._disk = disk
        self._clock = clock
        self._running: tuple[Future[None], Reached] | None = None
        self._began_at = clock()

    def begin(self, fd: int, reached: Reached) -> None:
        """Syncs the file, unless a sync runs or it is too early. It stays open until ``settle``."""
        now = self._clock()
        if self._running is None and now - self._began_at >= INTERVAL_SECONDS:
            self._began_at = now
            self._running = (_pool().submit(self._disk.sync, fd), reached)

    def done(self) -> Reached | None:
        """What an ended or overdue sync put on disk. Raises OSError when it failed."""
        if self._running is None:
            return None
        if not self._running[0].done() and self._clock() - self._began_at < OVERDUE_SECONDS:
            return None
        return self.settle()

    def settle(self) -> Reached | None:
        """As ``done``, but waits for a running sync."""
        if self._running is None:
            return None
        (future, reached), self._running = self._running, None
        future.result()
        return reached

    def close(self) -> None:
        """Waits for a running sync; its result is ignored."""
        if self._running is not None:
            wait([self._running[0]])
            self._running = None
