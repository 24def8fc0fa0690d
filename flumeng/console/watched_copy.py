"""A copy of the znodes that ZooKeeper reports changes of. Queries read the rest when they need it.

One recursive watch for each top folder names every changed path below it. The copy drops these
paths, and the next query reads them again. So any number of viewers costs ZooKeeper as much as one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TypeVar

from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot.reader import WATCHED
from flumeng.control.zookeeper import Found, Path, Store, Unreadable
from zkschema import paths
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)

MOST_CHANGES = 10_000
"""A query that began more changes ago adds nothing to the copy."""
TOPS: tuple[Path, ...] = (paths.schema(), *WATCHED)
PREFIXES = tuple(f"{top}/" for top in TOPS)


class Cache(ReadCache):
    """The records that one query has read, beginning with those of the copy. ``change``: the number
    of the copy's last change at that time. ``unreadable``: only of what this query reads."""

    def __init__(self, store: Store, change: int) -> None:
        super().__init__(store)
        self.change = change
        self.reads = 0

    def read_each(self, znodes: Sequence[ZPath[R]]) -> list[Found[R]]:
        before = len(self.znodes)
        found = super().read_each(znodes)
        self.reads += len(self.znodes) - before
        for path, record in zip(znodes, found, strict=True):
            if isinstance(record, Unreadable):
                self.unreadable[str(path)] = record
        return found


class WatchedCopy:
    """Thread-safe. ``reads`` counts the records that queries read from ZooKeeper."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._events: SimpleQueue[str] = SimpleQueue()
        self._watched = ReadCache(store)
        self._last = ReadCache(store)
        self._before = ReadCache(store)
        self._changes: deque[tuple[int, str]] = deque(maxlen=MOST_CHANGES)
        self._change = 0
        self.reads = 0
        store.on_session(lambda _alive: self._events.put(""))
        for top in TOPS:
            store.watch(top, self._events.put)

    @property
    def away(self) -> bool:
        """Whether ZooKeeper does not answer, so that queries see the copy of before."""
        return not self._store.connected

    @contextmanager
    def query(self, *, whole: bool = False) -> Iterator[Cache]:
        """Yield a cache for one query, and keep what it read. ``whole``: it reads all that a view
        of the cluster needs. While ZooKeeper is away queries see the last such one, and what
        others had read below watched folders. Raises as ``ReadCache.require``; UnavailableError
        for what was not read before, if it is away."""
        away = self.away
        with self._lock:
            self._drop_changed()
            cache = Cache(self._store, self._change)
            if not away:
                self._before = ReadCache(self._store)
            for seen in (self._before, self._last, self._watched) if away else (self._watched,):
                cache.znodes.update(seen.znodes)
                cache.folders.update(seen.folders)
        cache.require()
        yield cache
        with self._lock:
            self.reads += cache.reads
            self._drop_changed()
            if not away:
                self._keep(cache)
            if whole and not away:
                self._last = cache

    def _keep(self, cache: Cache) -> None:
        if self._changes and cache.change < self._changes[0][0] - 1:
            return
        changed = {path for number, path in self._changes if number > cache.change}
        if "" in changed:
            return
        watched = self._watched
        for key in cache.znodes.keys() - watched.znodes.keys():
            if f"{key}/".startswith(PREFIXES) and key not in changed:
                watched.znodes[key] = cache.znodes[key]
        for key in cache.folders.keys() - watched.folders.keys():
            if f"{key}/".startswith(PREFIXES) and not any(_parent(path) == key for path in changed):
                watched.folders[key] = cache.folders[key]

    def _drop_changed(self) -> None:
        """Forget what the watches reported since the last call."""
        while True:
            try:
                path = self._events.get_nowait()
            except Empty:
                return
            self._change += 1
            if not path:  # the session: all may have changed
                if self._watched.znodes:
                    self._before = self._watched
                self._watched = ReadCache(self._store)
            self._changes.append((self._change, path))
            self._watched.znodes.pop(path, None)
            self._watched.folders.pop(path, None)
            self._watched.folders.pop(_parent(path), None)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
