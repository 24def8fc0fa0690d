"""Those who want to hear that a journal has moved, instead of asking it again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Listeners:
    """Any thread may add and remove listeners; the thread that writes the journal tells them.

    A listener only takes a note: it never blocks and never asks the journal from within the call.
    Telling nobody costs nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._last: object = None

    def add(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: Callable[[], None]) -> None:
        """One that is not there is removed already."""
        with self._lock:
            self._listeners = tuple(kept for kept in self._listeners if kept is not listener)

    def tell(self, position: object) -> None:
        """The journal has come to ``position``; nobody hears of one that it had already."""
        if position == self._last:
            return
        self._last = position
        for listener in self._listeners:
            listener()

    def __len__(self) -> int:
        return len(self._listeners)
