"""Recovers a journal's directory after any crash, when it is opened. A bad frame past the
checkpoint's offset is a torn tail, never synced: it is copied to another file and truncated. A bad
frame before, or a segment missing or ending otherwise, raises CorruptError; no file changes."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import memory_salvage
from flumeng.journal.log.checkpoint import Checkpoint
from flumeng.journal.log.disk import FULL, Disk, read_into
from flumeng.journal.log.frame import HEADER_BYTES, BadFrameError, FrameHeader, decode_state, verify
from flumeng.journal.log.segment import (
    BROKEN,
    UNFINISHED,
    Segment,
    files,
    open_segment,
    read_frame_header,
    remove,
)
from flumeng.platform.errors import CorruptError

log = logging.getLogger(__name__)
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Recovered:
    """A recovered journal. ``segments``: in order, the last one active, all on disk."""

    checkpoint: Checkpoint
    segments: tuple[Segment, ...]
    state: dict[str, object]
    next_seq: int


def recover(directory: Path, journal: bytes, disk: Disk) -> Recovered:
    """Check a locked journal, truncate a torn tail, sync. Raises CorruptError, OSError, and
    UserError for a newer format or a foreign file."""
    checkpoint = checkpoints.read(directory / checkpoints.NAME, journal)
    if checkpoint.durability == "memory":
        checkpoint = memory_salvage.of_killed(directory, checkpoint, disk)
    trimmed, paths = _segment_paths(directory, checkpoint)
    opened = [open_segment(path, journal) for path in paths]
    segments = tuple(segment for segment, _ in opened)
    _measure_sealed(segments, journal)
    active, state = opened[-1]
    next_seq, problem = _scan(active, journal, checkpoint, state)
    assert next_seq >= checkpoint.safe, f"{active.path} ends at {next_seq}, below {checkpoint}"
    _settle(active, checkpoint, problem, disk)
    names = [path.name for path in directory.iterdir()]
    for path in trimmed:
        remove(path, names)
    for path in directory.glob(f"*{UNFINISHED}"):
        path.unlink()
    # A process killed between a rename and its sync leaves names that a power cut would undo.
    disk.sync_directory(directory)
    disk.sync_directory(directory.parent)
    return Recovered(checkpoint, segments, state, next_seq)


def _segment_paths(directory: Path, checkpoint: Checkpoint) -> tuple[list[Path], list[Path]]:
    """Return segments left over from an interrupted trim, and those from the floor on."""
    paths = files(directory)
    for name, base in (("floor", checkpoint.floor), ("synced end", checkpoint.segment)):
        if base not in paths:
            raise CorruptError(f"journal {directory}: segment of its {name}, {base}, is missing")
    bases = list(paths)
    at = bases.index(checkpoint.floor)
    return [paths[base] for base in bases[:at]], [paths[base] for base in bases[at:]]


def _measure_sealed(segments: tuple[Segment, ...], journal: bytes) -> None:
    for segment, successor in itertools.pairwise(segments):
        link = successor.header.previous
        length = segment.path.stat().st_size
        if link is None or link.base != segment.base:
            raise CorruptError(f"a segment between {segment.path} and {successor.path} is missing")
        if link.length != length:
            raise CorruptError(f"{segment.path} has {length} bytes, was sealed with {link.length}")
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            last = read_frame_header(fd, link.last_offset, journal, segment.path)
        finally:
            os.close(fd)
        if last.crc != link.last_crc or last.end != successor.base:
            raise CorruptError(f"segment {segment.path} does not end as {successor.path} says")
        segment.seal(link)


def _scan(
    active: Segment, journal: bytes, checkpoint: Checkpoint, state: dict[str, object]
) -> tuple[int, str]:
    """Check every bit of the last segment and merge its changes of source state into ``state``.
    Returns the next seq and a torn tail's error. Raises CorruptError below the synced offset."""
    synced = _synced(active, checkpoint)
    seq, term, problem = active.base, 0, ""
    try:
        for header, frame in _frames(active, journal):
            if header.term > checkpoint.term:
                raise CorruptError(
                    f"segment {active.path} at byte {active.length}: a frame of term "
                    f"{header.term}, but the checkpoint is of term {checkpoint.term}: it is older"
                )
            if header.first_seq != seq or header.term < term:
                raise BadFrameError(
                    f"a frame of seq {header.first_seq} and term {header.term} "
                    f"where seq {seq} and term {term} are expected"
                )
            changes = decode_state(frame.slice(HEADER_BYTES, header.state_bytes))
            merge_state(state, changes)
            active.grow(header)
            seq, term = header.end, header.term
    except BadFrameError as error:
        problem = str(error)
    if active.length < synced:
        raise CorruptError(
            f"segment {active.path} at byte {active.length}: {problem or 'the file ends'}, but "
            f"{synced} bytes were synced to disk"
        )
    return seq, problem


def _synced(active: Segment, checkpoint: Checkpoint) -> int:
    return checkpoint.offset if checkpoint.segment == active.base else active.first


def _frames(active: Segment, journal: bytes) -> Iterator[tuple[FrameHeader, pa.Buffer]]:
    with active.path.open("rb") as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        offset = active.first
        head = bytearray(HEADER_BYTES)
        while offset < size:
            read = read_into(fd, memoryview(head), offset)
            header = FrameHeader.unpack(head[:read], 0, journal)
            if offset + header.length > size:
                raise BadFrameError("the frame is cut short")
            frame = pa.allocate_buffer(header.length)
            read_into(fd, memoryview(frame), offset)
            yield verify(frame, journal), frame
            offset += header.length


def _settle(active: Segment, checkpoint: Checkpoint, problem: str, disk: Disk) -> None:
    """Truncate the last segment after its last valid frame and sync it. Frames past the checkpoint
    are rewritten: after a failed sync the kernel may treat their pages as clean."""
    fd = os.open(active.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size > active.length:
            _copy_aside(fd, active, size, disk)
            os.ftruncate(fd, active.length)
            log.warning(
                "%s: cut a torn tail, an unsynced write of %d bytes at byte %d (%s)",
                *(active.path, size - active.length, active.length, problem),
            )
        synced = _synced(active, checkpoint)
        _copy(disk, fd, fd, synced, active.length, to=synced)
        disk.sync(fd)
    finally:
        os.close(fd)


def _copy_aside(fd: int, active: Segment, size: int, disk: Disk) -> None:
    """Copy the torn tail to a file beside the segment as evidence, unless the disk is full."""
    path = active.path.with_name(f"{active.path.name}.{active.length}{BROKEN}")
    try:
        copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _copy(disk, fd, copy, active.length, size, to=0)
            disk.sync(copy)
        finally:
            os.close(copy)
    except OSError as error:
        if error.errno not in FULL:
            raise
        path.unlink(missing_ok=True)
        log.warning("%s: the disk has no room to keep a copy of the bytes that were cut", path)


def _copy(disk: Disk, source: int, target: int, begin: int, end: int, *, to: int) -> None:
    for offset in range(begin, end, _COPY_BYTES):
        block = os.pread(source, min(_COPY_BYTES, end - offset), offset)
        disk.write(target, [block], to + offset - begin)


def merge_state(state: dict[str, object], changes: dict[str, object]) -> None:
    """Apply changed keys of source state to ``state``; None deletes a key."""
    for key, value in changes.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
