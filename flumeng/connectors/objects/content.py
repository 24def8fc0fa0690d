"""Byte contents that formats read: an item, a decompressed item, or an archive's member. Items have
random access. Other contents are streams, held in memory for formats that seek."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import pyarrow as pa

from flumeng.control.snapshot.items import MOST_POSITION
from flumeng.platform.errors import CorruptError, FlumengError

BEGINNING_BYTES = 512
HELD_BYTES = 128 << 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MARK_BYTES = 4

Blocks = Callable[[], Iterator[bytes]]
Explained = Callable[[], AbstractContextManager[None]]


class Content(Protocol):
    """Bytes that a format reads. ``seekable``: later positions cost no more than the beginning."""

    @property
    def name(self) -> str: ...

    @property
    def seekable(self) -> bool: ...

    def beginning(self, size: int) -> bytes:
        """Return the first ``size`` bytes, at most ``BEGINNING_BYTES``."""

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """Yield non-empty blocks. ``start`` is for ``seekable`` contents only."""

    def file(self) -> pa.NativeFile:
        """Return the whole content, for random access."""

    def explained(self) -> AbstractContextManager[None]:
        """A context that converts library errors to FlumengError."""


class Streamed:
    """A stream that ``source`` restarts. Peeking followed by reading calls ``source`` once."""

    seekable = False

    def __init__(self, name: str, source: Blocks, explained: Explained) -> None:
        self.name = name
        self.explained = explained
        self._source = source
        self._head: bytes | None = None
        self._rest: Iterator[bytes] | None = None
        self._trouble: FlumengError | None = None

    def beginning(self, size: int) -> bytes:
        if self._head is None:
            self._head = self._peeked()
        return self._head[:size]

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        assert not start, "a stream is read from its beginning"
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
                    f"this format is read in memory, and the data has over {HELD_BYTES >> 20} MiB"
                )
            blocks.append(block)
        return pa.BufferReader(b"".join(blocks))

    def _peeked(self) -> bytes:
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


class BlockFile(io.RawIOBase):
    """Blocks as a file for C++ libraries, which lose data when reads fail: an error ends the file,
    ``check`` raises it."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._block = memoryview(b"")
        self._position = 0
        self.error: FlumengError | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        pieces = []
        while size and (self._block or self._next()):
            taken = self._block[:size] if size > 0 else self._block
            self._block = self._block[len(taken) :]
            pieces.append(taken)
            size -= len(taken) if size > 0 else 0
        whole = b"".join(pieces)
        self._position += len(whole)
        return whole

    def tell(self) -> int:
        return self._position

    def _next(self) -> bool:
        try:
            self._block = memoryview(b"" if self.error else next(self._blocks, b""))
        except FlumengError as error:
            self.error = error
        return len(self._block) > 0

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def is_utf8(encoding: str) -> bool:
    """Return whether text needs no decoding. Raises LookupError for an unknown encoding."""
    return codecs.lookup(encoding).name in ("utf-8", "ascii")


def text_from(content: Content, encoding: str, position: int) -> tuple[int, Iterator[bytes]]:
    """Return the nearest readable position at or below ``position``, and UTF-8 blocks from there.
    Raises CorruptError for UTF-16 declared as UTF-8."""
    if not is_utf8(encoding):
        return 0, _bounded(_decoded(content.blocks(), encoding), 0)
    beginning = content.beginning(_MARK_BYTES)
    if beginning[:2] in _UTF16 and 0 in beginning[2:]:
        raise CorruptError("the text is UTF-16, not UTF-8: set `encoding: utf-16`")
    if content.seekable:
        return position, _bounded(content.blocks(position), position)
    return 0, _bounded(content.blocks(), 0)


def without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield next(blocks, b"").removeprefix(codecs.BOM_UTF8)
    yield from blocks


def _decoded(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in blocks:
        if text := decoder.decode(block):
            yield text.encode("utf-8", "replace")
    if text := decoder.decode(b"", final=True):
        yield text.encode("utf-8", "replace")


def _bounded(blocks: Iterator[bytes], position: int) -> Iterator[bytes]:
    for block in blocks:
        position += len(block)
        if position > MOST_POSITION:
            raise CorruptError(f"the text has more than {MOST_POSITION} bytes")
        yield block


MOST_MEMBERS = 100_000
FREE_BYTES = 1 << 30
MOST_TIMES = 1000
"""Limit of unpacked bytes per archive byte, above ``FREE_BYTES``: the maximum of Deflate."""


class Member(NamedTuple):
    """A regular file in an archive. ``written``: seconds since the epoch, 0 when unknown."""

    name: str
    written: float
    blocks: Blocks


class Allowance:
    """The remaining unpacking limits of an archive. Raises CorruptError for a zip bomb."""

    def __init__(self, packed: int, members: int = MOST_MEMBERS, free: int = FREE_BYTES) -> None:
        self._members = members
        self._bytes = min(max(free, MOST_TIMES * packed), MOST_POSITION)
        self._too_many = f"the archive has more than {members} members"
        self._too_large = f"{packed} bytes of an archive unpack to more than {self._bytes} bytes"

    def count(self) -> None:
        self._members -= 1
        if self._members < 0:
            raise CorruptError(self._too_many)

    def take(self, size: int) -> None:
        self._bytes -= size
        if self._bytes < 0:
            raise CorruptError(self._too_large)

    def of(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.take(len(block))
            yield block
