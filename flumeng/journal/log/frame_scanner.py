"""Scans a segment's file; after damage it continues at the next valid frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from flumeng.journal.log.disk import read_into
from flumeng.journal.log.encryption import NO_KEYS, Keyring, key_of
from flumeng.journal.log.errors import KeyMissingError, held
from flumeng.journal.log.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    MAGIC,
    BadFrameError,
    FrameHeader,
    events,
    verify,
)
from flumeng.platform.errors import UserError

_SEARCH_BYTES = 1 << 20
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Good:
    """A valid frame. ``batch`` is None if its events are lost or the key ``locked`` is missing."""

    offset: int
    header: FrameHeader
    frame: pa.Buffer
    batch: pa.RecordBatch | None
    locked: str = ""


@dataclass(frozen=True, slots=True)
class Bad:
    offset: int
    end: int
    why: str


def scan(
    fd: int, first: int, size: int, journal: bytes, keyring: Keyring = NO_KEYS
) -> Iterator[Good | Bad]:
    """Yield the valid frames and damaged ranges between the offsets ``first`` and ``size``. Without
    their key, encrypted frames are checked by checksum. Raises UserError (format), HeldError."""
    offset = first
    while offset < size:
        end = size
        try:
            header = FrameHeader.unpack(_read(fd, offset, HEADER_BYTES), 0, journal)
            if offset + header.length > size:
                raise BadFrameError("the frame is cut short")
            end = offset + header.length
            frame = pa.py_buffer(_read(fd, offset, header.length))
            verify(frame, journal)
            good = _look_into(offset, header, frame, keyring)
        except (BadFrameError, OSError) as error:
            if end == size:
                end = _next_frame(fd, offset + ALIGNMENT, size, journal)
            yield Bad(offset, end, getattr(error, "strerror", None) or str(error))
        else:
            yield good
        offset = end


def _look_into(offset: int, header: FrameHeader, frame: pa.Buffer, keyring: Keyring) -> Good:
    if header.lost:
        return Good(offset, header, frame, None)
    try:
        return Good(offset, header, frame, events(*keyring.opened(frame, header)))
    except KeyMissingError:
        return Good(offset, header, frame, None, key_of(frame, header))


def _next_frame(fd: int, offset: int, size: int, journal: bytes) -> int:
    """Return the offset of the next valid frame, or ``size`` when none follows."""
    while offset < size:
        block = _read_what_can_be(fd, offset, min(_SEARCH_BYTES, size - offset))
        at = block.find(MAGIC)
        while at >= 0:
            if at % ALIGNMENT == 0 and _is_frame(fd, offset + at, size, journal):
                return offset + at
            at = block.find(MAGIC, at + 1)
        offset += len(block)
    return size


def _is_frame(fd: int, offset: int, size: int, journal: bytes) -> bool:
    try:
        header = FrameHeader.unpack(_read(fd, offset, HEADER_BYTES), 0, journal)
        if offset + header.length > size:
            return False
        verify(pa.py_buffer(_read(fd, offset, header.length)), journal)
    except (BadFrameError, UserError, OSError):
        return False
    return True


def _read(fd: int, offset: int, size: int) -> bytearray:
    data = bytearray(size)
    try:
        del data[read_into(fd, memoryview(data), offset) :]
    except OSError as error:
        raise held("a segment", error) or error from error
    return data


def _read_what_can_be(fd: int, offset: int, size: int) -> bytes:
    """Return bytes of a file, with zeros in place of unreadable ones."""
    try:
        return bytes(_read(fd, offset, size)).ljust(size, b"\0")
    except OSError:
        if size <= _PAGE_BYTES:
            return bytes(size)
    return b"".join(
        _read_what_can_be(fd, at, min(_PAGE_BYTES, offset + size - at))
        for at in range(offset, offset + size, _PAGE_BYTES)
    )
