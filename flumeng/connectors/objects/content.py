"""What formats read: the bytes of an item, of what is compressed in it, or of an archive's member.

An item can be read from anywhere; all others from their beginning only, and are in memory as a
whole for a format that looks around in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from flumeng.platform.errors import CorruptError, FlumengError

BEGINNING_BYTES = 512
"""So much tells what something is: a tar's first header."""
HELD_BYTES = 128 << 20
"""What is larger is not held in memory as a whole."""

Blocks = Callable[[], Iterator[bytes]]
"""Gives a stream from its beginning each time."""
Explained = Callable[[], AbstractContextManager[None]]


class Content(Protocol):
    """``name`` is for people, and its suffix counts. ``seekable``: blocks from further on cost no
    more than those from the beginning."""

    @property
    def name(self) -> str: ...

    @property
    def seekable(self) -> bool: ...

    def beginning(self, size: int) -> bytes:
        """The first bytes: ``BEGINNING_BYTES`` at most, and fewer where it is shorter."""

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """Its bytes; no block is empty. Only one that is ``seekable`` takes a ``start``."""

    def file(self) -> pa.NativeFile:
        """All of it, to read anywhere."""

    def explained(self) -> AbstractContextManager[None]:
        """A context for libraries that read it themselves: their errors become ours."""


class Streamed:
    """Bytes that come one after the other. ``source`` begins them anew each time it is called, and
    is called once by whoever asks for the beginning and then for the blocks."""

    seekable = False

    def __init__(self, name: str, source: Blocks, explained: Explained) -> None:
        self.name = name
        self.explained = explained
        self._source = source
        self._head: bytes | None = None
        self._rest: Iterator[bytes] | None = None
        """What follows the head, as long as nobody has taken it."""
        self._trouble: FlumengError | None = None
        """What came behind the head instead of bytes."""

    def beginning(self, size: int) -> bytes:
        if self._head is None:
            self._head = self._peeked()
        return self._head[:size]

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        assert not start, "it has to be read from its beginning"
        rest, self._rest = self._rest, None
        if rest is None:
            yield from self._source()
            return
        if self._head:
            yield self._head
        if self._trouble is not None:
            raise self._trouble
        yield from rest

    def file(self) -> pa.NativeFile:
        blocks, size = [], 0
        for block in self.blocks():
            size += len(block)
            if size > HELD_BYTES:
                raise CorruptError(
                    f"it has more than {HELD_BYTES >> 20} MiB, and has to be in memory as a whole"
                )
            blocks.append(block)
        return pa.BufferReader(b"".join(blocks))

    def _peeked(self) -> bytes:
        """Raises what comes instead of the first byte."""
        self._rest = self._source()
        head = b""
        try:
            while len(head) < BEGINNING_BYTES and (block := next(self._rest, b"")):
                head = head + block if head else block
        except FlumengError as error:
            if not head:
                raise
            self._trouble = error
        return head
