"""Parts of ``Positions`` that inputs share: watching, probing, describing standstills."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import TypeVar

from flumeng.connectors.api.ranged import Kind, Range, Reach, Standstill
from flumeng.connectors.ranged.reading import Reader
from flumeng.connectors.ranged.watcher import WatchedEnds
from flumeng.control.snapshot.partitions import label_of
from flumeng.platform.errors import UnavailableError

T = TypeVar("T")

PROBE_THREADS = 4
HUNG_SECONDS = 60.0
"""How long a server that did not answer a probe is remembered."""


class Probes:
    """Retries of failed reads outside of batches, in a few threads of a process. When a server does
    not answer, its waiting probes fail too, so that one hung server does not occupy all threads."""

    def __init__(self, name: str, threads: Executor | None = None) -> None:
        self._threads = threads or ThreadPoolExecutor(PROBE_THREADS, f"{name} probe")
        self._lock = threading.Lock()
        self._hung: dict[Hashable, tuple[float, UnavailableError]] = {}

    def probe(self, server: Hashable, read: Callable[[], T], wake: Callable[[], None]) -> Future[T]:
        """Call ``read`` in a thread, then ``wake``; the future ends as ``read``. Never blocks."""
        probe = self._threads.submit(self._probe, server, read, time.monotonic())
        probe.add_done_callback(lambda _: wake())
        return probe

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _probe(self, server: Hashable, read: Callable[[], T], asked_at: float) -> T:
        with self._lock:
            hung_at, error = self._hung.get(server, (0.0, None))
        if error is not None and asked_at < hung_at:
            raise error
        try:
            result = read()
        except UnavailableError as error:
            now = time.monotonic()
            with self._lock:
                self._hung[server] = (now, error)
                self._hung = {s: h for s, h in self._hung.items() if now - h[0] < HUNG_SECONDS}
            raise
        with self._lock:
            self._hung.pop(server, None)
        return result


class WatchedPositions:
    """``Positions`` of one task. A subclass sets the reader, and the watcher, which tasks share.
    Without a watcher ``of`` returns nothing."""

    def __init__(self, probes: Probes, wake: Callable[[], None]) -> None:
        self._probes = probes
        self._wake = wake
        self._reader: Reader | None = None
        self._watcher: WatchedEnds[Reach] | None = None
        self._watched: frozenset[str] | None = None

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        if self._watcher is None:
            return {}
        watched = frozenset(partitions)
        if watched != self._watched:
            self._watcher.watch(self, watched, self._wake)
            self._watched = watched
        return self._watcher.of(watched)

    def refresh(self, partitions: Collection[str]) -> None:
        if self._watcher is not None:
            self._watcher.refresh(partitions)

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        piece = Range(partition, start, end)
        server = self._watcher or self, address
        return self._probes.probe(server, lambda: self._try(piece, address), self._wake)

    def _try(self, piece: Range, address: str) -> None:
        assert self._reader is not None, "a partition that was reached has a reader"
        next(self._reader.read(piece, address), None)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.forget(self)
        self._watched = None


def described(standstill: Standstill, texts: Mapping[Kind, str], **names: str) -> str:
    """Return the text for this kind of standstill, with the standstill's fields filled in."""
    label = label_of(standstill.partition)
    return texts[standstill.kind].format(**asdict(standstill), label=label, **names)
