"""Memory into which readers copy frames from files, used again as soon as nothing refers to it.

Fresh memory costs a fault and zeros for each page, twice the time of the copy itself. The memory is
mapped, since the C library would keep that of many streams.
"""

from __future__ import annotations

import mmap
import sys
import threading

FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
"""Shared memory, or a fault for each page, take twice the time."""
KEPT_BYTES = 32 << 20
ROUNDED_BYTES = 256 << 10


def _references(kept: list[mmap.mmap]) -> list[int]:
    return [sys.getrefcount(memory) for memory in kept]


_FREE = _references([mmap.mmap(-1, 1)])[0]
"""References to a kept mapping that nothing else refers to."""


class WindowMemory:
    """Keeps mappings of at most ``kept_bytes``. Thread-safe."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._lock = threading.Lock()
        self._kept: list[mmap.mmap] = []
        self._kept_bytes = kept_bytes

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes of any contents, which are the caller's while it refers to them."""
        rounded = -(-size // ROUNDED_BYTES) * ROUNDED_BYTES
        with self._lock:
            for place, references in enumerate(_references(self._kept)):
                if references == _FREE and len(self._kept[place]) == rounded:
                    return memoryview(self._kept[place])[:size]
            memory = mmap.mmap(-1, rounded, flags=FLAGS)
            self._keep(memory)
            return memoryview(memory)[:size]

    def _keep(self, memory: mmap.mmap) -> None:
        """Add it; the oldest ones go, and are unmapped when nothing refers to them."""
        self._kept.append(memory)
        total = sum(map(len, self._kept))
        while total > self._kept_bytes:
            total -= len(self._kept.pop(0))
