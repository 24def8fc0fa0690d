"""Taps: people look at a few of the newest events of a running flow.

A tap has a ticket of its own: the node's policy says which flows may be tapped, and all taps share
a bound. Servers without taps refuse it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from flumeng.events.journal_names import flow_of
from flumeng.journal.log.contract import Log
from flumeng.journal.log.errors import TapDeniedError, TapsBusyError
from flumeng.journal.log.places import Places
from flumeng.journal.log.segment import Window

READS_AT_ONCE = 4
STILL_SECONDS = 20.0
READ_BYTES = 1 << 20
"""A read ends with the window that passes this."""
BYTES_A_SECOND = 4 << 20
"""Of all taps of the process together; also the burst after a pause."""


class Taps:
    """Thread-safe. ``allows`` says which flows may be tapped."""

    def __init__(
        self, allows: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._allows = allows
        self._clock = clock
        self._places = Places(READS_AT_ONCE, STILL_SECONDS, clock)
        self._lock = threading.Lock()
        self._left = float(BYTES_A_SECOND)
        self._counted_at = clock()

    def admit(self, journal: str) -> None:
        """Raises TapDeniedError."""
        flow = flow_of(journal)
        if not self._allows(flow):
            raise TapDeniedError(
                f"this node's policy file does not allow to tap the flow {flow}: name it in `tap` "
                "there"
            )

    def windows(self, journal: Log, start: int, end: int) -> Iterator[Window]:
        """Windows of [start, end) within the limits, one at least. Raises TapsBusyError."""
        if self._bytes_left() <= 0:
            raise TapsBusyError(f"taps read {BYTES_A_SECOND} bytes a second here already")
        windows = journal.read_frames(start, end)
        if not self._places.take(windows):
            raise TapsBusyError(f"{READS_AT_ONCE} taps read here already")
        read = 0
        try:
            for window in windows:
                read += window.buffer.size
                self._count(window.buffer.size)
                yield window
                self._places.moved(windows)
                if read >= READ_BYTES:
                    return
        finally:
            self._places.leave(windows)

    def _bytes_left(self) -> float:
        with self._lock:
            now = self._clock()
            gained = (now - self._counted_at) * BYTES_A_SECOND
            self._left = min(float(BYTES_A_SECOND), self._left + gained)
            self._counted_at = now
            return self._left

    def _count(self, size: int) -> None:
        with self._lock:
            self._left -= size
