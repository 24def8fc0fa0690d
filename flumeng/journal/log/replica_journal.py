"""A journal that is one of several replicas: the primary, or a follower that appends the primary's
frames. The caller sets the term. Each term begins a segment, so the segments' first frames tell the
history of terms. Readers see events up to the checkpoint, which all in-sync replicas have."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from flumeng.journal.log import directory as directories
from flumeng.journal.log import replica as replicas
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.errors import BelowFloorError, HeldError
from flumeng.journal.log.frame import HEADER_BYTES, BadFrameError, FrameHeader, decode_state, verify
from flumeng.journal.log.journal import KEEP_FREE_BYTES, SEGMENT_BYTES, Journal
from flumeng.journal.log.journal_cipher import KeyReference
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.segment import Segment, Window, open_segment, read_frame_header
from flumeng.journal.replication.history import Log, Start
from flumeng.platform.errors import CorruptError
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

KEEP_SECONDS = 1.0
"""Minimum seconds between two writes of the replica's checkpoint, which may lag on disk."""


@contextmanager
def _uncached(path: Path) -> Iterator[None]:
    """Drop a file from the page cache before and after reading it, to read the medium."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        yield
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class ReplicaJournal(Journal):
    """A ``Journal`` of one replica; ``make`` creates and ``load`` opens it."""

    replica: Replica

    @staticmethod
    def make(
        parent: Path,
        journal: str,
        replica: Replica,
        *,
        base: int = 0,
        term: int = 0,
        state: Mapping[str, object] = MappingProxyType({}),
        key: KeyReference | None = None,
        limits: Limits | None = None,
        disk: Disk | None = None,
    ) -> ReplicaJournal:
        """Create a replica without events, with first seq ``base`` and source ``state``. A primary
        with a ``key`` calls ``cipher.use`` before it appends. Raises as ``Journal.create``."""
        path = directories.path_of(parent, journal)
        with directories.plain_errors(path):
            directories.create(
                path, disk or Disk(), "replicated", state, key=key, replica=replica, base=base
            )
        made = ReplicaJournal.load(path, limits=limits, disk=disk)
        made.fence(term)
        return made

    @staticmethod
    def load(
        directory: Path,
        *,
        limits: Limits | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        disk: Disk | None = None,
    ) -> ReplicaJournal:
        """Recover an existing replica and keep its term. Raises as ``Journal.open``."""
        with directories.plain_errors(directory):
            return ReplicaJournal(
                directory, limits or Limits(), segment_bytes, keep_free_bytes, disk or Disk()
            )

    def __init__(
        self, directory: Path, limits: Limits, segment_bytes: int, keep_free_bytes: int, disk: Disk
    ) -> None:
        self.replica = replicas.read(directory)
        super().__init__(directory, limits, segment_bytes, keep_free_bytes, disk)
        self._kept_at = time.monotonic()
        self._kept = self.replica
        self.replica = replace(self.replica, checkpoint=max(self.replica.checkpoint, self.floor))
        self._failures = RateLimitedLog(log)
        checkpoint = self.replica.checkpoint
        try:
            self._history = self._read_history()
            if self.synced < checkpoint:
                raise CorruptError(
                    f"replica {directory} ends at seq {self.synced}, all replicas had {checkpoint}"
                )
        except BaseException:
            self._abandon()
            raise

    @property
    def safe(self) -> int:
        return min(self.synced, self.replica.checkpoint)

    @property
    def held(self) -> Log:
        return Log(self.floor, self.next_seq, min(self.synced, self.next_seq), self._history)

    @property
    def source_state_at_floor(self) -> Mapping[str, object]:
        """The source state at the beginning of the first segment. Raises CorruptError."""
        first: Segment = self._chain.at(0)
        return open_segment(first.path, self._identity)[1]

    def fence(self, term: int) -> None:
        """Store the term durably; it must not be lower. Frames of a higher term are rejected."""
        assert term >= self.term
        self._keep_checkpoint()
        self._writer.write_checkpoint(term=term, now=True)

    def adopt(self, lineage: str) -> None:
        """Durably set the lineage: this replica's events become the journal's history. With the old
        one it would empty itself as a follower, even in sync. Raises HeldError without a change."""
        if lineage == self.replica.lineage:
            return
        replica = replace(self.replica, lineage=lineage)
        try:
            replicas.write(self._directory, replica, self._disk)
        except OSError as error:
            why = f"its new lineage cannot be written: {error.strerror}"
            raise HeldError(f"journal {self.id}: {why}", why) from error
        self.replica = self._kept = replica

    def advance(self, checkpoint: int) -> None:
        """Move the checkpoint up: events below it are readable, and on every in-sync replica."""
        if checkpoint > self.replica.checkpoint:
            self.replica = replace(self.replica, checkpoint=checkpoint)
            self._tell()

    def append_frame(self, frame: pa.Buffer) -> FrameHeader:
        """Append a frame of the primary after checking every bit. Raises HeldError, CorruptError
        after a failure or for damage, a gap, a higher term, plain text where all is encrypted."""
        self._writer.require_sound()
        header = verify(frame, self._identity)
        if self.cipher.reference is not None and not (header.encrypted or header.lost):
            raise CorruptError(
                f"journal {self.id}: the frame of seq {header.first_seq} is in plain text, but "
                f"all are encrypted with key {self.cipher.key_id}"
            )
        if header.first_seq != self.next_seq or header.term > self.term:
            raise CorruptError(
                f"journal {self.id}: a frame of seq {header.first_seq} and term {header.term}, "
                f"where seq {self.next_seq} of term {self.term} is expected"
            )
        state = decode_state(frame.slice(HEADER_BYTES, header.state_bytes))
        self._write(header, [frame], state)
        return header

    def lacks(self, frame: pa.Buffer) -> bool:
        """Return whether the frame has events that this replica lacks. Raises CorruptError."""
        return FrameHeader.unpack(frame, 0, self._identity).end > self.next_seq

    def written_frames(self, start: int, end: int) -> Iterator[Window]:
        """Yield the written frames of [start, end), synced or not. Raises CorruptError for damage,
        after yielding all preceding frames."""
        return self._windows(start, end)

    def scrub(self) -> Iterator[Window]:
        """Yield all synced frames, verified; sealed segments are read from the medium, unless
        trimmed meanwhile. Raises OSError; CorruptError for damaged or missing events."""
        end, segments = self.synced, self._chain.segments
        ends = [after.base for after in segments[1:]] + [end]
        for part, part_end in zip(segments, ends, strict=True):
            try:
                with _uncached(part.path) if part is not segments[-1] else nullcontext():
                    yield from self._scrub_segment(part, part_end)
            except (FileNotFoundError, BelowFloorError) as error:
                if part.base >= self.floor:
                    raise CorruptError(f"segment {part.path} is missing") from error

    def _scrub_segment(self, part: Segment, end: int) -> Iterator[Window]:
        open_segment(part.path, self._identity)
        seq = part.base
        for window in part.windows(seq, end):
            for frame in window:
                header = verify(frame, self._identity)
                if header.first_seq != seq:
                    raise CorruptError(f"{part.path}: found seq {header.first_seq}, expected {seq}")
                seq = header.end
            yield window

    def cut(self, end: int) -> ReplicaJournal:
        """Remove events from ``end`` on, even below the checkpoint. Returns the reopened journal,
        which replaces this object. Raises CorruptError, HeldError, OSError."""
        self._writer.require_sound()
        kept, offset = self._place_of(end)
        if end < self.replica.checkpoint:
            self.replica = replace(self.replica, checkpoint=end)
            replicas.write(self._directory, self.replica, self._disk)
        later = [part for part in self._chain.segments if part.base > kept.base]
        self._writer.write_checkpoint(segment=kept.base, offset=offset, safe=end, now=True)
        for part in reversed(later):
            part.path.unlink()
        fd = os.open(kept.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, offset)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        self._disk.sync_directory(self._directory)
        return self.reopened()

    @property
    def sound(self) -> bool:
        return self._writer.sound

    def reopened(self) -> ReplicaJournal:
        """Recover the journal from disk as at a start, and return the object that replaces this
        one. Writes not known to be on disk are repeated and synced. Raises as ``load``."""
        if self._open:
            self._abandon()
        left = ReplicaJournal.load(
            self._directory,
            limits=self.limits,
            segment_bytes=self._segment_bytes,
            keep_free_bytes=self._keep_free_bytes,
            disk=self._disk,
        )
        left.cipher = self.cipher
        return left

    def restart(self, floor: int, lineage: str, state: Mapping[str, object]) -> ReplicaJournal:
        """Delete all events and begin again at seq ``floor``; return the journal that replaces this
        object. After an interruption no replica remains."""
        term, parent = self.term, self._directory.parent
        replica = replace(self.replica, lineage=lineage, checkpoint=floor)
        self.remove()
        recreated = ReplicaJournal.make(
            parent,
            self.id,
            replica,
            base=floor,
            term=term,
            state=state,
            key=self.cipher.reference,
            limits=self.limits,
            disk=self._disk,
        )
        recreated.cipher = self.cipher
        return recreated

    def set_aside(self) -> Path:
        """Close without a write, rename the directory and return its path. Raises OSError."""
        if self._open:
            self._abandon()
        return replicas.set_aside(self._directory)

    def trim(self, ack: int) -> None:
        """Move the checkpoint to ``ack``, below which all replicas have the events; then trim."""
        self.advance(min(ack, self.synced))
        super().trim(ack)

    def maintain(self) -> None:
        super().maintain()
        if time.monotonic() - self._kept_at >= KEEP_SECONDS:
            self._keep_checkpoint()

    def close(self) -> None:
        if self._open and self._writer.sound:
            self._keep_checkpoint()
        super().close()

    def remove(self) -> None:
        self._kept = self.replica
        super().remove()

    @property
    def restless(self) -> bool:
        return super().restless or self._kept != self.replica

    def check(self) -> None:
        super().check()
        assert self.replica.checkpoint >= self.safe
        assert not self._history or self._history[-1].term <= self.term

    def _opening_term(self) -> int:
        return self.term

    def _roll_is_due(self, header: FrameHeader) -> bool:
        before = self._history[-1].term if self._history else 0
        begins = header.term != before and self._chain.active.length > self._chain.active.first
        return begins or super()._roll_is_due(header)

    def _write(self, header: FrameHeader, parts: Sequence[Any], state: dict[str, object]) -> None:
        super()._write(header, parts, state)
        if not self._history or self._history[-1].term != header.term:
            self._history += (Start(header.term, header.first_seq),)

    def _windows(self, start: int, end: int) -> Iterator[Window]:
        """Yield stored frames after checking every bit: other replicas can repair damage."""
        for window in super()._windows(start, end):
            for sound, frame in enumerate(window):
                try:
                    verify(frame, self._identity)
                except BadFrameError as error:
                    if sound:
                        yield replace(window, offsets=window.offsets[: sound + 1])
                    raise CorruptError(f"journal {self.id}: {error}") from error
            yield window

    def _read_history(self) -> tuple[Start, ...]:
        history: list[Start] = []
        for part in self._chain.segments:
            if part.length == part.first:
                continue
            with part.path.open("rb") as file:
                header = read_frame_header(file.fileno(), part.first, self._identity, part.path)
            if not history or header.term != history[-1].term:
                history.append(Start(header.term, header.first_seq))
        return tuple(history)

    def _place_of(self, end: int) -> tuple[Segment, int]:
        kept = [part for part in self._chain.segments if part.base <= end][-1]
        offset = kept.first
        with kept.path.open("rb") as file:
            seq = kept.base
            while seq < end:
                header = read_frame_header(file.fileno(), offset, self._identity, kept.path)
                seq, offset = header.end, offset + header.length
        if seq != end:
            raise CorruptError(f"{kept.path}: no frame ends at seq {end}")
        return kept, offset

    def _keep_checkpoint(self) -> None:
        self._kept_at = time.monotonic()
        if self._kept == self.replica:
            return
        try:
            replicas.write(self._directory, self.replica, self._disk)
        except OSError as error:
            later = "journal %s: its replica's checkpoint is written later: %s"
            self._failures.warning(later, self.id, error)
            return
        self._kept = self.replica

    def _abandon(self) -> None:
        self._open = False
        self._writer.close()
        os.close(self._lock)
