"""A segment: one file of frames, named by the first seq it may hold.

    header (128 bytes) | source state (JSON, padded) | frame | frame | ...

The source state is complete as of the segment's start, so recovery reads all frames of the last
segment only. The header identifies the preceding segment by length and last checksum, which reveals
a missing, shorter or older file. A segment gets its name only when its header is on disk. Each read
opens the file, so readers can finish a segment that is trimmed meanwhile.
"""

from __future__ import annotations

import bisect
import itertools
import os
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from flumeng.journal.log.disk import FULL, Disk, read_into
from flumeng.journal.log.errors import BelowFloorError, held
from flumeng.journal.log.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    MAX_WHOLE_STATE_BYTES,
    BadFrameError,
    FrameHeader,
    decode_whole_state,
    encode_whole_state,
    padded,
)
from flumeng.journal.log.window_memory import WindowMemory
from flumeng.platform.errors import CorruptError, FlumengError, UserError

SUFFIX = ".segment"
UNFINISHED = ".unfinished"
BROKEN = ".broken"
MAGIC = b"FLSG"
VERSION = 1
# magic, version, flags, reserved, state bytes, state CRC, term, base, journal, then the
# predecessor's base, length, last frame's offset and checksum (length 0: none); zeros; the CRC.
FIELDS = struct.Struct("<4sBBHIIQQ16sQQQI48x")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_BYTES = FIELDS.size + _CRC.size
assert SEGMENT_HEADER_BYTES % ALIGNMENT == 0

INDEX_BYTES = 64 << 10
WINDOW_BYTES = 1 << 20
LARGE_FRAME_BYTES = WINDOW_BYTES // 4
"""Behind a frame this large, a window holds the next frame only: the rest would be read twice."""

_memory = WindowMemory()


def file_name(base: int) -> str:
    return f"{base:020d}{SUFFIX}"


def files(directory: Path) -> dict[int, Path]:
    """Return the segment files by base, in order. Raises UserError for another file so named."""
    found: dict[int, Path] = {}
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        base = path.name.removesuffix(SUFFIX)
        if not base.isdecimal() or path.name != file_name(int(base)):
            raise UserError(f"{path} is no segment of the journal: move it to another directory")
        found[int(base)] = path
    return found


@dataclass(frozen=True, slots=True)
class Link:
    """The end of a segment, by which the next segment's header identifies it."""

    base: int
    length: int
    last_offset: int
    last_crc: int


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    journal: bytes
    term: int
    base: int
    previous: Link | None

    def pack(self, state: bytes) -> bytes:
        link = self.previous or Link(0, 0, 0, 0)
        fields = FIELDS.pack(
            MAGIC,
            VERSION,
            0,
            0,
            len(state),
            crc32c(state),
            self.term,
            self.base,
            self.journal,
            link.base,
            link.length,
            link.last_offset,
            link.last_crc,
        )
        return fields + _CRC.pack(crc32c(fields))


@dataclass(frozen=True, slots=True)
class Window:
    """Whole frames in one buffer, between consecutive ``offsets``; ``encrypted`` if any is."""

    buffer: pa.Buffer
    offsets: list[int]
    encrypted: bool = False

    def __iter__(self) -> Iterator[pa.Buffer]:
        for begin, end in itertools.pairwise(self.offsets):
            yield self.buffer.slice(begin, end - begin)


class Index:
    """The offsets of about one frame in 64 KiB. One thread adds, any thread looks up."""

    def __init__(self) -> None:
        self._seqs = array("Q")
        self._offsets = array("Q")

    def add(self, seq: int, offset: int) -> None:
        if not self._offsets or offset - self._offsets[-1] >= INDEX_BYTES:
            self._offsets.append(offset)  # before the seq, by which readers find it
            self._seqs.append(seq)

    @property
    def last_offset(self) -> int | None:
        return self._offsets[-1] if self._offsets else None

    def find(self, seq: int, default: int) -> int:
        """Return the offset of the last indexed frame that begins by ``seq``, else ``default``."""
        at = bisect.bisect_left(self._seqs, seq + 1) - 1
        return self._offsets[at] if at >= 0 else default


class Segment:
    """A segment as readers see it; the writer advances ``length`` and the last frame. Invariants:
    ``first <= last_offset < length`` with frames; ``length`` ends a frame or the header."""

    def __init__(self, path: Path, journal: bytes, header: SegmentHeader, first: int) -> None:
        self.path = path
        self.header = header
        self.base = header.base
        self.first = first
        self.length = first
        self.last_offset = 0
        self.last_crc = 0
        self._journal = journal
        self._index: Index | None = None

    @property
    def link(self) -> Link:
        return Link(self.base, self.length, self.last_offset, self.last_crc)

    def seal(self, link: Link) -> None:
        """Set the final end from the next segment's header; a sealed segment never grows."""
        self.length = link.length
        self.last_offset = link.last_offset
        self.last_crc = link.last_crc

    def grow(self, header: FrameHeader) -> None:
        """Record that a frame was written at ``length``."""
        if self._index is None:
            self._index = Index()
        self._index.add(header.first_seq, self.length)
        self.last_offset = self.length
        self.last_crc = header.crc
        self.length += header.length

    def follow(self, length: int, end: int) -> None:
        """Set the length of a file that another process writes, and index its frames below seq
        ``end``, which are durable. Not thread-safe."""
        self.length = length
        index = self._index or Index()
        with self._open() as fd:
            self._extend(index, fd, end)
        self._index = index

    def windows(self, start: int, end: int) -> Iterator[Window]:
        """Yield windows of the frames of [start, end) in order; ``end`` must be written. Raises
        BelowFloorError (trimmed), HeldError, CorruptError after all frames before the damage."""
        with self._open() as fd:
            offset = self._seek(fd, start)
            window_bytes, large = WINDOW_BYTES, False
            seq = start
            while seq < end:
                if large and offset < self.length:
                    window_bytes = self._length(fd, offset)
                size = min(window_bytes, self.length - offset)
                if size <= 0:
                    raise CorruptError(f"segment {self.path} ends at seq {seq}, expected {end}")
                memory = _memory.take(size)
                try:
                    _read(fd, memory, offset, self.path)
                except CorruptError:
                    alone = read_frame_header(fd, offset, self._journal, self.path).length
                    if size <= alone:
                        raise
                    window_bytes, large = alone, False  # reads the frames before a bad sector
                    continue
                buffer = pa.py_buffer(memory)
                offsets = [0]
                at = 0
                encrypted = False
                window_bytes = WINDOW_BYTES
                while seq < end and at < size:
                    try:
                        header = self._header(buffer, at, offset)
                    except FlumengError:
                        if len(offsets) > 1:
                            yield Window(buffer, offsets, encrypted)
                        raise
                    large = header.length >= LARGE_FRAME_BYTES
                    if at + header.length > size:
                        window_bytes = max(window_bytes, header.length)
                        break
                    at += header.length
                    if header.end <= start:
                        offsets = [at]
                        continue
                    offsets.append(at)
                    encrypted |= header.encrypted
                    seq = header.end
                if size == self.length - offset and at == 0:
                    raise CorruptError(f"{self.path} at byte {offset}: the frame is cut short")
                if len(offsets) > 1:
                    yield Window(buffer, offsets, encrypted)
                offset += at

    def _header(self, buffer: pa.Buffer, at: int, offset: int) -> FrameHeader:
        try:
            return FrameHeader.unpack(buffer, at, self._journal)
        except BadFrameError as error:
            raise CorruptError(f"{self.path} at byte {offset + at}: {error}") from error

    def _length(self, fd: int, offset: int) -> int:
        """Return the length of the frame at ``offset``; a window's if its header is damaged."""
        try:
            return read_frame_header(fd, offset, self._journal, self.path).length
        except CorruptError:
            return WINDOW_BYTES

    def _seek(self, fd: int, seq: int) -> int:
        """Return the offset of the frame with ``seq``, or of one shortly before it."""
        if seq <= self.base:
            return self.first
        if self._index is None:
            self._index = self._build_index(fd)
        return self._index.find(seq, self.first)

    def _build_index(self, fd: int) -> Index:
        """Index a segment that an earlier process wrote, up to a damaged header."""
        index = Index()
        self._extend(index, fd)
        return index

    def _extend(self, index: Index, fd: int, end: int | None = None) -> None:
        offset = self.first if index.last_offset is None else index.last_offset
        while offset < self.length:
            try:
                header = read_frame_header(fd, offset, self._journal, self.path)
            except CorruptError:
                break
            if end is not None and header.end > end:
                break
            index.add(header.first_seq, offset)
            offset += header.length

    @contextmanager
    def _open(self) -> Iterator[int]:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise BelowFloorError(f"segment {self.path} was deleted") from error
        except OSError as error:
            if waits := held(str(self.path), error):
                raise waits from error
            raise
        try:
            yield fd
        finally:
            os.close(fd)


def read_frame_header(fd: int, offset: int, journal: bytes, path: Path) -> FrameHeader:
    raw = bytearray(HEADER_BYTES)
    _read(fd, memoryview(raw), offset, path)
    try:
        return FrameHeader.unpack(raw, 0, journal)
    except BadFrameError as error:
        raise CorruptError(f"{path} at byte {offset}: {error}") from error


def _read(fd: int, view: memoryview, offset: int, path: Path) -> None:
    try:
        read = read_into(fd, view, offset)
    except OSError as error:
        why = f"{path} at byte {offset}"
        raise held(why, error) or CorruptError(f"{why}: {error.strerror}") from error
    if read < view.nbytes:
        raise CorruptError(f"{path} ends at byte {offset + read}")


def create(
    directory: Path, header: SegmentHeader, state: Mapping[str, object], disk: Disk
) -> Segment:
    """Write a segment's header and state to disk, then give the file its name, but not after
    OSError. The caller syncs the directory before use."""
    fresh, fd = begin(directory, header, state, disk)
    os.close(fd)
    return fresh


def begin(
    directory: Path,
    header: SegmentHeader,
    state: Mapping[str, object],
    disk: Disk,
    spare: Path | None = None,
) -> tuple[Segment, int]:
    """As ``create``, and return an open descriptor for the frames. A full disk uses the blocks of
    ``spare``."""
    path = directory / file_name(header.base)
    assert not path.exists(), f"{path} would be overwritten"
    unfinished = path.with_name(path.name + UNFINISHED)
    blob = encode_whole_state(state)
    parts = [header.pack(blob), blob.ljust(padded(len(blob)), b"\0")]
    try:
        fd = _write(unfinished, parts, disk)
    except OSError as error:
        if error.errno not in FULL or spare is None or not spare.exists():
            raise
        spare.rename(unfinished)
        fd = _write(unfinished, parts, disk)
    try:
        unfinished.rename(path)
    except OSError:
        os.close(fd)
        raise
    return Segment(path, header.journal, header, sum(map(len, parts))), fd


def _write(path: Path, parts: Sequence[bytes], disk: Disk) -> int:
    """Write and sync a file, reusing blocks that it has; return its descriptor."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        disk.write(fd, parts, 0)
        os.ftruncate(fd, sum(map(len, parts)))
        disk.sync(fd)
    except OSError:
        if fd >= 0:
            os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd


def remove(path: Path, names: Iterable[str]) -> None:
    """Delete a segment and, before it, saved torn tails. ``names`` lists the directory, since
    listing it here would need a descriptor."""
    for name in names:
        if name.startswith(f"{path.name}.") and name.endswith(BROKEN):
            path.with_name(name).unlink()
    path.unlink()


def open_segment(path: Path, journal: bytes) -> tuple[Segment, dict[str, object]]:
    """Return a segment without frames and its state. Raises CorruptError, UserError, OSError."""
    with path.open("rb") as file:
        raw = file.read(SEGMENT_HEADER_BYTES)
        if len(raw) < SEGMENT_HEADER_BYTES or raw[:4] != MAGIC:
            raise CorruptError(f"{path} does not begin as a segment")
        if crc32c(raw[: FIELDS.size]) != _CRC.unpack_from(raw, FIELDS.size)[0]:
            raise CorruptError(f"{path}: the checksum of the segment's header does not match")
        (_, version, _, _, state_bytes, state_crc, term, base, owner, *link) = FIELDS.unpack_from(
            raw
        )
        if version != VERSION:
            raise UserError(f"{path} has format version {version}, this flumeng reads {VERSION}")
        if owner != journal:
            raise CorruptError(f"{path} belongs to another journal")
        if path.name != file_name(base):
            raise CorruptError(f"{path}: its header says that it is {file_name(base)}")
        if state_bytes > MAX_WHOLE_STATE_BYTES:
            raise CorruptError(f"{path}: source state of {state_bytes} bytes is out of bounds")
        if SEGMENT_HEADER_BYTES + state_bytes > os.fstat(file.fileno()).st_size:
            raise CorruptError(f"{path} ends within its source state")
        blob = file.read(state_bytes)
    if crc32c(blob) != state_crc:
        raise CorruptError(f"{path}: the checksum of the source state does not match")
    try:
        state = decode_whole_state(blob)
    except BadFrameError as error:
        raise CorruptError(f"{path}: {error}") from error
    previous = Link(*link) if link[1] else None
    header = SegmentHeader(owner, term, base, previous)
    first = SEGMENT_HEADER_BYTES + padded(state_bytes)
    return Segment(path, journal, header, first), state
