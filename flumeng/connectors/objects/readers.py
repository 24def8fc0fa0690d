"""Threads that ask a store for pages, while a listing goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_Work = tuple["Future[T]", Callable[..., T], tuple[Any, ...]] | None


class Readers:
    """How many threads a lister has, those included that a dead mount has swallowed for good: it
    never gets more of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._alive = 0

    def enter(self) -> bool:
        with self._lock:
            if self._alive == self._most:
                return False
            self._alive += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._alive -= 1


class Reading(Generic[T]):
    """The threads of one listing; they end with it."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._queue: SimpleQueue[_Work[T]] = SimpleQueue()
        self._started = 0

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        self._queue.put((future, work, arguments))
        if self._readers.enter():
            self._started += 1
            threading.Thread(target=self._run, name="listing", daemon=True).start()
        return future

    def end(self) -> None:
        """What was not begun is never done."""
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        for _ in range(self._started):
            self._queue.put(None)

    def _run(self) -> None:
        try:
            while (work := self._queue.get()) is not None:
                future, call, arguments = work
                try:
                    future.set_result(call(*arguments))
                except BaseException as error:
                    future.set_exception(error)
        finally:
            self._readers.leave()
