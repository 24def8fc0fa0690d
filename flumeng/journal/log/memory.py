"""A journal held in memory, for events that may be lost with the process. The disk holds only the
checkpoint, not synced, with the number of events, and the source state as of the last ack. Closing
writes the unacked events to disk, encrypted if there is a keyring."""

from __future__ import annotations

import bisect
import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import directory as directories
from flumeng.journal.log import memory_salvage
from flumeng.journal.log.checkpoint import CheckpointFile, Durability
from flumeng.journal.log.contract import Position
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.encryption import Keyring
from flumeng.journal.log.errors import (
    AboveSafeError,
    BelowFloorError,
    DiskFullError,
    JournalFailedError,
    held,
)
from flumeng.journal.log.frame import HEADER_BYTES, FrameHeader, Payload, decode_state, identity
from flumeng.journal.log.journal_cipher import JournalCipher, KeyReference
from flumeng.journal.log.limits import MEMORY_BYTES, Limits, Room, no_limit, size_text
from flumeng.journal.log.listeners import Listeners
from flumeng.journal.log.recovery import merge_state
from flumeng.journal.log.segment import WINDOW_BYTES, Window
from flumeng.platform.errors import CorruptError, FlumengError, UserError

Frame = tuple[FrameHeader, bytes]


class MemoryJournal:
    """A journal in memory with the methods, threads and errors of ``Journal``; never reopened.
    ``limits`` bounds its memory; nothing is retained, and the disk limit ``room`` is ignored."""

    durability: Durability = "memory"
    lost = 0
    restless = False

    @staticmethod
    def create(
        directory: Path,
        journal: str,
        *,
        limits: Limits | None = None,
        keyring: Keyring | None = None,
        disk: Disk | None = None,
    ) -> MemoryJournal:
        path = directories.path_of(directory, journal)
        disk = disk or Disk()
        with directories.plain_errors(path):
            directories.create(path, disk, "memory", {}, key=KeyReference.of(keyring))
            journal_ = MemoryJournal(path, limits or Limits(MEMORY_BYTES), disk)
            if keyring is not None:
                journal_.cipher.use(keyring)
            return journal_

    def __init__(self, directory: Path, limits: Limits, disk: Disk) -> None:
        self.id = directory.name
        self.limits = limits
        self.room: Callable[[], Room] = no_limit
        self.next_seq = 0
        self.bytes = 0
        self.listeners = Listeners()
        self.full = False
        self._directory = directory
        self._disk = disk
        self._identity = identity(self.id)
        self._frames: list[Frame] = []
        self._state: dict[str, object] = {}
        self._acked_state: dict[str, object] = {}
        self._failure: Exception | None = None
        self._open = True
        with contextlib.ExitStack() as undo:
            self._lock = directories.lock(directory)
            undo.callback(os.close, self._lock)
            self.cipher = JournalCipher(directory, disk)
            self._checkpoint = checkpoints.read(directory / checkpoints.NAME, self._identity)
            self._checkpoint_file = CheckpointFile(directory / checkpoints.NAME, disk)
            undo.callback(self._checkpoint_file.close)
            self._write_checkpoint(term=1, boot=disk.boot())
            self._checkpoint_file.sync(now=True)
            undo.pop_all()

    @property
    def term(self) -> int:
        return self._checkpoint.term

    @property
    def floor(self) -> int:
        return self._checkpoint.floor

    @property
    def acked(self) -> int:
        return self._checkpoint.floor

    @property
    def safe(self) -> int:
        return self._checkpoint.safe

    @property
    def readable(self) -> int:
        return self._checkpoint.safe

    @property
    def closed(self) -> bool:
        return self._checkpoint.closed

    @property
    def state(self) -> Mapping[str, object]:
        return MappingProxyType(dict(self._state))

    def append(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> int:
        return self.append_encoded(self.encode(batch, state))

    def encode(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> Payload:
        return Payload.encode(batch, state)

    def append_encoded(self, payload: Payload) -> int:
        self._require_sound()
        if self.closed:
            raise UserError(f"journal {self.id} is closed: it takes no more events")
        if not payload.rows and not payload.state:
            return self.next_seq
        header, parts = payload.at(self._identity, self.term, self.next_seq)
        if self._is_full(header.length):
            self.trim(self.floor)  # frames of state only, which no ack passes
        self.full = self._is_full(header.length)
        if self.full:
            self._tell()
            raise DiskFullError(
                f"journal {self.id}: it holds {self.bytes >> 20} MiB in memory and may hold "
                f"{self.limits.max_bytes >> 20} MiB; events from seq {self.acked} on are not acked",
                f"journal full: {size_text(self.bytes)} of {size_text(self.limits.max_bytes)} "
                "of memory",
            )
        self._frames.append((header, b"".join(parts)))
        self.bytes += header.length
        merge_state(self._state, payload.state)
        self.next_seq = header.end
        return header.first_seq

    def _is_full(self, more: int) -> bool:
        return bool(self._frames) and self.bytes + more > self.limits.max_bytes

    def sync(self) -> int:
        """Make all appended events readable; return ``safe``."""
        self._require_sound()
        self._write_checkpoint(safe=self.next_seq)
        return self.safe

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        return ((self.floor, self.bytes),)

    @property
    def lags(self) -> Mapping[str, int]:
        return {}

    def confirms(self, end: int) -> bool:
        return end <= self.safe

    def on_confirmed(self, wake: Callable[[], None]) -> None:
        """Do nothing: acks do not wait for replicas."""

    def maintain(self) -> None:
        """Do nothing: this journal has no periodic work."""

    def trim(self, ack: int) -> None:
        """Drop frames with all events below ``ack``, after storing their state on disk."""
        self._require_sound()
        if ack > self.safe:
            raise CorruptError(f"journal {self.id}: ack {ack} is above its end {self.safe}")
        frames = self._frames
        count = bisect.bisect_right(frames, ack, key=lambda frame: frame[0].end)
        state = dict(self._acked_state)
        for header, data in frames[:count]:
            merge_state(state, _changes(header, data))
        if state != self._acked_state:
            try:
                memory_salvage.keep_state(self._directory, state)
            except OSError as error:
                raise self._not_written(error) from error
        self._write_checkpoint(floor=max(ack, self.floor))
        self._acked_state = state
        self._frames = frames[count:]
        self.bytes -= sum(header.length for header, _ in frames[:count])

    def close_for_appends(self) -> int:
        self._require_sound()
        self._write_checkpoint(safe=self.next_seq, closed=True)
        return self.next_seq

    def close(self) -> None:
        """Write unacked events to disk, and release the lock. After a failure they are lost."""
        if not self._open:
            return
        try:
            if self._failure is None:
                self._write_checkpoint(safe=self.next_seq)
                frames = [self._for_disk(header, data) for header, data in self._frames]
                memory_salvage.lay_down(
                    self._directory, self._checkpoint, self._acked_state, frames, self._disk
                )
        finally:
            self._let_go()

    def remove(self) -> None:
        doomed = directories.hidden(self._directory)
        self._directory.rename(doomed)
        self._disk.sync_directory(doomed.parent)
        self._let_go()
        shutil.rmtree(doomed)

    def read_frames(self, start: int, end: int) -> Iterator[Window]:
        if end > self.safe:
            raise AboveSafeError(
                f"journal {self.id}: seq {end} is above its last durable event, at {self.safe}"
            )
        frames = self._frames
        if start < (frames[0][0].first_seq if frames else self.floor):
            raise BelowFloorError(f"journal {self.id}: seq {start} is gone, first is {self.floor}")
        first = bisect.bisect_right(frames, start, key=lambda frame: frame[0].end)
        parts: list[bytes] = []
        size = 0
        for header, data in frames[first:]:
            if header.first_seq >= end:
                break
            if parts and size + len(data) > WINDOW_BYTES:
                yield _window(parts)
                parts, size = [], 0
            parts.append(data)
            size += len(data)
        if parts:
            yield _window(parts)

    def check(self) -> None:
        frames = self._frames
        ends = [self.next_seq if not frames else frames[0][0].first_seq]
        for header, data in frames:
            assert header.first_seq == ends[-1]
            assert header.length == len(data)
            ends.append(header.end)
        assert ends[-1] == self.next_seq
        assert self.bytes == sum(len(data) for _, data in frames)
        assert ends[0] <= self.floor <= self.safe <= self.next_seq

    def _for_disk(self, header: FrameHeader, data: bytes) -> tuple[FrameHeader, list[Any]]:
        state = data[HEADER_BYTES : HEADER_BYTES + header.state_bytes]
        message = data[header.message_offset : header.message_offset + header.message_bytes]
        return self.cipher.sealed(header, [data], state, message)

    def _write_checkpoint(self, **changes: Any) -> None:
        checkpoint = replace(self._checkpoint, **changes)
        try:
            self._checkpoint_file.write(checkpoint)
        except OSError as error:
            raise self._not_written(error) from error
        self._checkpoint = checkpoint
        self._tell()

    def _tell(self) -> None:
        self.listeners.tell(Position.of(self))

    def _let_go(self) -> None:
        self._open = False
        self._checkpoint_file.close()
        os.close(self._lock)

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise JournalFailedError(
                f"journal {self.id} has failed: {self._failure}"
            ) from self._failure

    def _not_written(self, error: OSError) -> FlumengError:
        if waits := held(f"journal {self.id}", error):
            return waits
        self._failure = error
        return JournalFailedError(f"journal {self.id} has failed: {error}")


def _changes(header: FrameHeader, data: bytes) -> dict[str, object]:
    return decode_state(memoryview(data)[HEADER_BYTES : HEADER_BYTES + header.state_bytes])


def _window(parts: list[bytes]) -> Window:
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return Window(pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts)), offsets)
