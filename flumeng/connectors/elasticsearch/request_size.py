"""How large bulk requests are: as large as the cluster takes them, and no larger than allowed."""

from __future__ import annotations

LEAST_BYTES = 64 * 1024
FIRST_BYTES = 1024 * 1024


class RequestSize:
    """Doubles while requests are answered, halves when one is not taken. After that it grows by an
    eighth, as TCP does with its window: the cluster is still busy."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._growth = 2.0
        self.bytes = min(FIRST_BYTES, most_bytes)

    def grow(self) -> None:
        self.bytes = min(self._most, int(self.bytes * self._growth))

    def shrink(self) -> None:
        self._growth = 1.125
        self.bytes = max(LEAST_BYTES, self.bytes // 2)
