"""Blocks of bytes as a file that libraries of C++ can read."""

from __future__ import annotations

import io
from collections.abc import Iterator

from flumeng.platform.errors import FlumengError


class BlockFile(io.RawIOBase):
    """Where the blocks end in an error, the file ends, and ``check`` raises it: libraries lose what
    they hold when a read fails."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._block = memoryview(b"")
        self._position = 0
        self.error: FlumengError | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or all that there are till the end."""
        found = []
        while size and (self._block or self._next()):
            taken = self._block[:size] if size > 0 else self._block
            self._block = self._block[len(taken) :]
            found.append(taken)
            size -= len(taken) if size > 0 else 0
        whole = b"".join(found)
        self._position += len(whole)
        return whole

    def tell(self) -> int:
        return self._position

    def _next(self) -> bool:
        """Whether there is another block."""
        try:
            self._block = memoryview(b"" if self.error else next(self._blocks, b""))
        except FlumengError as error:
            self.error = error
        return len(self._block) > 0

    def check(self) -> None:
        """Raises the error in which the blocks have ended."""
        if self.error is not None:
            raise self.error
