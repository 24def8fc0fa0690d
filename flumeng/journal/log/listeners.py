"""Callbacks for the progress of a journal."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Listeners:
    """Thread-safe callbacks of one journal. They never block and never call the journal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._last: object = None

    def add(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners = tuple(kept for kept in self._listeners if kept is not listener)

    def tell(self, position: object) -> None:
        """Call all listeners if ``position`` differs from that of the last call."""
        if position == self._last:
            return
        self._last = position
        for listener in self._listeners:
            listener()

    def __len__(self) -> int:
        return len(self._listeners)
