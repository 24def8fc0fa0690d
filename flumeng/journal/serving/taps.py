"""Taps: reads of a few of the newest events of a running flow, for people. The node's policy names
the flows that may be tapped, and all taps share a rate limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator

from flumeng.events.journal_names import flow_of
from flumeng.journal.log.contract import Log
from flumeng.journal.log.errors import TapDeniedError, TapsBusyError
from flumeng.journal.log.segment import Window

READS_AT_ONCE = 4
STILL_SECONDS = 20.0
READ_BYTES = 1 << 20
"""A tap ends after the window with which it reaches this size."""
BYTES_A_SECOND = 4 << 20
"""The rate limit of all taps of the process together; also the burst after a pause."""
STUCK = 4
"""Calls without progress that are admitted beyond the limit of calls, in multiples of it."""


class Places:
    """Limits concurrent calls; a known peer has at most the share ``each``. Thread-safe. A call
    without progress for ``still_seconds`` stops counting, and a second limit bounds all calls."""

    def __init__(
        self,
        count: int,
        still_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        each: float = 1.0,
    ) -> None:
        self.count = count
        self._each = max(1, int(count * each))
        self._still_seconds = still_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._moved_at: dict[object, float] = {}
        self._peers: dict[object, str] = {}

    def take(self, call: object, peer: str = "") -> bool:
        """Admit a call of ``peer``; return whether there was room."""
        now = self._clock()
        with self._lock:
            moved_at = self._moved_at
            of_peer = [moved_at[running] for running, owner in self._peers.items() if owner == peer]
            if self._full(moved_at.values(), now, self.count) or (
                peer and self._full(of_peer, now, self._each)
            ):
                return False
            moved_at[call], self._peers[call] = now, peer
            return True

    def _full(self, moved_at: Collection[float], now: float, count: int) -> bool:
        moving = sum(1 for at in moved_at if now - at < self._still_seconds)
        return moving >= count or len(moved_at) >= count * (1 + STUCK)

    def moved(self, call: object) -> None:
        """Record that the client of a call has read something."""
        self._moved_at[call] = self._clock()

    def leave(self, call: object) -> None:
        with self._lock:
            self._moved_at.pop(call, None)
            self._peers.pop(call, None)


class Taps:
    """The taps of a server. Thread-safe. ``allows`` returns whether a flow may be tapped."""

    def __init__(
        self,
        allows: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
        bytes_a_second: int = BYTES_A_SECOND,
        read_bytes: int = READ_BYTES,
    ) -> None:
        self._allows = allows
        self._clock = clock
        self._places = Places(READS_AT_ONCE, STILL_SECONDS, clock)
        self._lock = threading.Lock()
        self._bytes_a_second, self._read_bytes = bytes_a_second, read_bytes
        self._left = float(bytes_a_second)
        self._counted_at = clock()

    def admit(self, journal: str) -> None:
        flow = flow_of(journal)
        if not self._allows(flow):
            raise TapDeniedError(
                f"this node's policy file does not allow taps of the flow {flow}: name it in `tap` "
                "there"
            )

    def windows(self, journal: Log, start: int, end: int) -> Iterator[Window]:
        """Yield windows of [start, end) within the limits, at least one. Raises TapsBusyError."""
        if self._bytes_left() <= 0:
            raise TapsBusyError(f"taps already read {self._bytes_a_second} bytes/s from this node")
        windows = journal.read_frames(start, end)
        if not self._places.take(windows):
            raise TapsBusyError(f"{READS_AT_ONCE} taps already read from this node")
        read = 0
        try:
            for window in windows:
                read += window.buffer.size
                self._count(window.buffer.size)
                yield window
                self._places.moved(windows)
                if read >= self._read_bytes:
                    return
        finally:
            self._places.leave(windows)

    def _bytes_left(self) -> float:
        with self._lock:
            now = self._clock()
            gained = (now - self._counted_at) * self._bytes_a_second
            self._left = min(float(self._bytes_a_second), self._left + gained)
            self._counted_at = now
            return self._left

    def _count(self, size: int) -> None:
        with self._lock:
            self._left -= size
