"""The journal: a durable, single-writer, sequence-numbered log of received events.

What it promises: an event below ``safe`` is on disk, readers see nothing at or above it, a number
never names two events, and nothing below ``safe`` is ever cut away to make a damaged journal open.
It knows nothing of sources, ZooKeeper or the network.

With durability ``spill`` an event below ``safe`` is in the kernel's hands: it outlives the process,
and comes to the disk within a second or so. A journal that may have lost some of these, since the
machine was started anew, takes no more events: their seqs may have been seen.

One directory holds one journal: segment files, the checkpoint and the lock. One thread writes
(append, sync, trim, tend, close); any thread may read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from flumeng.errors import CorruptError, FlumengError, UserError
from flumeng.journal import checkpoint as checkpoints
from flumeng.journal import directory as directories
from flumeng.journal import reading, recovery, segment
from flumeng.journal.chain import Chain
from flumeng.journal.checkpoint import NO_BOOT, CheckpointFile, Durability
from flumeng.journal.disk import FULL, Disk
from flumeng.journal.errors import (
    AboveSafeError,
    DataLossError,
    DiskFullError,
    JournalFailedError,
)
from flumeng.journal.frame import encode, identity
from flumeng.journal.lazy import LazySync, Reached
from flumeng.journal.limits import Limits
from flumeng.journal.segment import SegmentHeader, Window

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
KEEP_FREE_BYTES = 64 << 20
ROLL_WORTH_BYTES = 1 << 20


class Journal:
    """An open journal. Make one with ``create`` or ``open``.

    ``floor <= safe <= next_seq``: events in [floor, safe) can be read, those in [safe, next_seq)
    are appended but not synced. What is said of the journal is what its checkpoint says.
    ``limits`` may be replaced at any time.
    """

    id: str
    next_seq: int
    safe: int
    """Every event below is as durable as the journal promises."""
    acked: int
    """As far as was said to ``trim`` since it was opened."""

    @staticmethod
    def create(
        directory: Path,
        journal: str,
        *,
        durability: Durability = "disk",
        limits: Limits | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        disk: Disk | None = None,
    ) -> Journal:
        """Make ``directory/<journal>`` and open it.

        Raises UserError for a bad or a used id and for a directory that cannot be written.
        """
        path = directories.place(directory, journal)
        with directories.plain_errors(path):
            directories.create(path, disk or Disk(), durability)
        return Journal.open(
            path,
            limits=limits,
            segment_bytes=segment_bytes,
            keep_free_bytes=keep_free_bytes,
            disk=disk,
        )

    @staticmethod
    def open(
        directory: Path,
        *,
        limits: Limits | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        disk: Disk | None = None,
    ) -> Journal:
        """Recover the journal in its own directory and begin a new term.

        Raises UserError when another process has it open or when it cannot be read or written,
        CorruptError when synced data is damaged (nothing is changed then).
        """
        with directories.plain_errors(directory):
            return Journal(
                directory, limits or Limits(), segment_bytes, keep_free_bytes, disk or Disk()
            )

    @staticmethod
    def find(directory: Path) -> list[Path]:
        """The journals in a directory; deletes what a broken-off create or remove left there."""
        return directories.find(directory)

    def __init__(
        self,
        directory: Path,
        limits: Limits,
        segment_bytes: int,
        keep_free_bytes: int,
        disk: Disk,
    ) -> None:
        self.id = directory.name
        self.limits = limits
        self._directory = directory
        self._identity = identity(self.id)
        self._segment_bytes = segment_bytes
        self._keep_free_bytes = keep_free_bytes
        self._disk = disk
        self._failure: Exception | None = None
        with contextlib.ExitStack() as undo:
            self._lock = directories.lock(directory)
            undo.callback(os.close, self._lock)
            recovered = recovery.recover(directory, self._identity, disk)
            self._state = recovered.state
            self._chain = Chain(recovered.segments)
            self.next_seq = self.safe = recovered.next_seq
            self.acked = self._chain.floor
            self._fd = os.open(self._active.path, os.O_RDWR | os.O_CLOEXEC)
            undo.callback(os.close, self._fd)
            self._checkpoint = CheckpointFile(directory / checkpoints.NAME, disk)
            undo.callback(self._checkpoint.close)
            self._said = recovered.checkpoint
            self._lazy = LazySync(disk) if self.durability == "spill" else None
            self._say(
                term=self.term + 1,
                segment=self._active.base,
                offset=self._active.length,
                safe=self.next_seq,
                closed=self.closed or self._lost_its_kernel(),
                boot=disk.boot() if self._lazy else NO_BOOT,
                now=True,
            )
            directories.make_spare(directory, disk)
            undo.pop_all()

    @property
    def term(self) -> int:
        """Grows with each opening; on disk before the first append of that opening."""
        return self._said.term

    @property
    def durability(self) -> Durability:
        """What it was created with."""
        return self._said.durability

    @property
    def floor(self) -> int:
        """The lowest seq that is kept: the base of the first segment."""
        return self._said.floor

    @property
    def readable(self) -> int:
        """Up to where events can be read: ``safe``, or where a loss waits to be accepted."""
        return min(self.safe, self._said.barrier)

    @property
    def bytes(self) -> int:
        """What its segments hold."""
        return self._chain.bytes

    @property
    def closed(self) -> bool:
        """It takes no more events, for good."""
        return self._said.closed

    @property
    def state(self) -> Mapping[str, object]:
        """Source state as of the last append; recovered together with the events. A copy, so any
        thread may ask."""
        return MappingProxyType(dict(self._state))

    @property
    def restless(self) -> bool:
        """Whether ``tend`` has something to do once in a while."""
        return self._lazy is not None or self.limits.retain

    @property
    def _active(self) -> segment.Segment:
        return self._chain.active

    def append(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> int:
        """Write one frame; returns the seq of its first event. Not synced, not readable yet.

        ``state`` holds the changed keys of source state, None deletes one; a batch of no rows
        carries state alone. Raises UserError (batch over the limits, journal closed),
        DiskFullError (nothing was written; try again later) and JournalFailedError.
        """
        self._require_sound()
        if self.closed:
            raise UserError(f"journal {self.id} is closed: it takes no more events")
        changes = dict(state or {})
        if not batch.num_rows and not changes:
            return self.next_seq
        if self._active.length >= self.limits.segment_bytes(self._segment_bytes):
            self._roll()
        active = self._active
        header, parts = encode(self._identity, self.term, self.next_seq, batch, changes)
        self._require_room(header.length)
        try:
            self._disk.write(self._fd, parts, active.length)
        except OSError as error:
            self._cut_back()
            raise self._not_written(error) from error
        active.grow(header)
        recovery.merge_state(self._state, changes)
        self.next_seq = header.end
        return header.first_seq

    def sync(self) -> int:
        """Make everything appended durable, then readable; returns ``safe``.

        Raises JournalFailedError when that failed: then nothing of it may be acknowledged, now or
        after another try, because the kernel may have dropped what it could not write.
        """
        self._require_sound()
        if self._lazy is not None:
            self.safe = self.next_seq
            self._sync_lazily()
        elif self._said.offset < self._active.length or self.safe < self.next_seq:
            self._sync()
        return self.safe

    def tend(self) -> None:
        """Do what is due by time alone: syncs of durability ``spill``, the end of retention."""
        self._require_sound()
        if self._lazy is not None:
            self._sync_lazily()
        self._drop(self._chain.expired(self.acked, self.limits))

    def trim(self, ack: int) -> None:
        """Drop the segments whose events all lie below ``ack``, unless they are to be retained.

        An active segment of at least 1 MiB that is acked to its end is replaced by a new one.
        Needs no free space. Raises CorruptError for an ack above ``safe``.
        """
        self._require_sound()
        if ack > self.safe:
            raise CorruptError(
                f"journal {self.id}: ack {ack} lies above its end {self.safe}; events that a "
                "reader has seen are gone from it"
            )
        self.acked = max(self.acked, ack)
        grown = self._active.length - self._active.first
        if ack == self.next_seq and grown >= ROLL_WORTH_BYTES and not self.limits.retain:
            with contextlib.suppress(DiskFullError):
                self._roll(spare=directories.spare(self._directory))
        self._drop(self._chain.expired(self.acked, self.limits))
        directories.make_spare(self._directory, self._disk)

    def close_for_appends(self) -> int:
        """Sync and take no more events, for good, also after reopening; returns the end."""
        self._require_sound()
        if not self.closed:
            self._sync(closed=True, now=True)
        return self.next_seq

    def close(self) -> None:
        """Sync what is left unless the journal has failed, and let others open it."""
        if self._fd < 0:
            return
        try:
            if self._failure is None:
                self._sync(now=True, boot=NO_BOOT)
        finally:
            if self._lazy is not None:
                self._lazy.close()
            self._checkpoint.close()
            os.close(self._fd)
            os.close(self._lock)
            self._fd = -1

    def remove(self) -> None:
        """Close the journal and delete its directory with everything in it."""
        doomed = directories.hidden(self._directory)
        self._directory.rename(doomed)
        self._disk.sync_directory(doomed.parent)
        self.close()
        shutil.rmtree(doomed)

    def read_frames(self, start: int, end: int) -> Iterator[Window]:
        """Yield windows of whole raw frames that cover [start, end), in order.

        The first frame may begin before ``start``, the last may end after ``end``. Raises
        BelowFloorError, AboveSafeError, DataLossError where events are lost, and CorruptError
        where a frame's header is damaged; whoever decodes checks the rest.
        """
        if end > self.safe:
            raise AboveSafeError(
                f"journal {self.id}: seq {end} lies above its safe end {self.safe}"
            )
        if end > self.readable:
            raise DataLossError(
                f"journal {self.id}: events from seq {self.readable} on are lost; "
                "`flumeng journal repair --accept-loss` lets readers go on behind them"
            )
        yield from self._chain.windows(start, end)

    def read(self, start: int, end: int, *, replayed: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield exactly the events of [start, end) in READ_SCHEMA, every bit checked.

        Raises as ``read_frames`` does, and CorruptError for a damaged frame.
        """
        frames = (frame for window in self.read_frames(start, end) for frame in window)
        return reading.rows(frames, self.id, start, end, replayed=replayed)

    def check(self) -> None:
        """Assert the journal's invariants."""
        assert self.floor == self._chain.floor <= self.acked <= self.safe <= self.next_seq
        assert self._said.safe <= self.safe
        assert self._said.segment < self._active.base or self._said.offset <= self._active.length
        self._chain.check(sound=self._failure is None)

    def _lost_its_kernel(self) -> bool:
        """Whether events that were acknowledged may be gone, because the machine was started anew
        before they came to the disk."""
        boot = self._said.boot
        lost = boot not in (NO_BOOT, self._disk.boot())
        if lost and not self.closed:
            log.error(
                "journal %s: the machine went down before all was on disk: what was accepted in "
                "the last second or so may be lost; it ends at seq %d and takes no more events",
                self.id,
                self.next_seq,
            )
        return lost

    def _sync(self, *, now: bool = False, **changes: Any) -> None:
        """Put the active segment on disk, and with ``now`` the checkpoint as well."""
        try:
            if self._lazy is not None:
                self._lazy.settle()
            self._disk.sync(self._fd)
        except OSError as error:
            raise self._fail(error) from error
        reached = Reached(self._active.base, self._active.length, self.next_seq)
        self._say_reached(reached, now=now, **changes)
        self.safe = self.next_seq

    def _sync_lazily(self) -> None:
        """Take note of what came to the disk, and begin to sync what has not."""
        assert self._lazy is not None
        try:
            reached = self._lazy.done()
        except OSError as error:
            raise self._fail(error) from error
        if reached is not None:
            self._say_reached(reached, now=False)
        if self._said.offset < self._active.length:
            reached = Reached(self._active.base, self._active.length, self.next_seq)
            self._lazy.begin(self._fd, reached)

    def _say_reached(self, reached: Reached, *, now: bool, **changes: Any) -> None:
        self._say(
            segment=reached.segment, offset=reached.offset, safe=reached.safe, now=now, **changes
        )

    def _say(self, *, now: bool, **changes: Any) -> None:
        """Write a new checkpoint. Nothing in it may be ahead of what is on disk."""
        said = replace(self._said, **changes)
        try:
            self._checkpoint.write(said)
        except OSError as error:
            raise self._not_written(error) from error
        try:
            self._checkpoint.sync(now=now)
        except OSError as error:
            raise self._fail(error) from error
        self._said = said

    def _roll(self, spare: Path | None = None) -> None:
        """Sync and seal the active segment and go on in a new one, unless it has no events yet.

        On a full disk the new one is made of ``spare``.
        """
        if self.next_seq == self._active.base:
            return
        self._sync(now=True)
        header = SegmentHeader(self._identity, self.term, self.next_seq, self._active.link)
        try:
            fresh = segment.create(self._directory, header, self._state, self._disk, spare)
        except OSError as error:
            raise self._not_written(error) from error
        try:
            self._disk.sync_directory(self._directory)
            fd = os.open(fresh.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise self._fail(error) from error
        os.close(self._fd)
        self._fd = fd
        self._chain.add(fresh)
        self._say(segment=fresh.base, offset=fresh.length, now=True)

    def _drop(self, count: int) -> None:
        """Delete the oldest segments, once the checkpoint on disk knows."""
        if not count:
            return
        kept = self._chain.at(count)
        # After a roll with no room for its checkpoint, that one names a segment that goes now.
        moved = (
            {"segment": kept.base, "offset": kept.first} if self._said.segment < kept.base else {}
        )
        self._say(floor=kept.base, now=True, **moved)
        try:
            for old in self._chain.drop(count):
                for tail in self._directory.glob(f"{old.path.name}.*{segment.BROKEN}"):
                    tail.unlink()
                old.path.unlink()
        except OSError as error:
            raise self._fail(error) from error

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise JournalFailedError(
                f"journal {self.id} has failed and must be opened anew: {self._failure}"
            ) from self._failure

    def _require_room(self, length: int) -> None:
        """What is only retained goes before anybody has to wait."""
        while lack := self._lack(length):
            if not self._chain.acked(self.acked):
                raise DiskFullError(f"journal {self.id}: {lack}")
            self._drop(1)

    def _lack(self, length: int) -> str:
        """Why there is no room for a frame. One that waits for no reader takes it in any case, or
        it would wait for ever."""
        free = self._disk.free_bytes(self._fd)
        if free < self._keep_free_bytes + length:
            return (
                f"{free >> 20} MiB are free on the disk of {self._directory}, "
                f"{self._keep_free_bytes >> 20} MiB are kept free"
            )
        if self.bytes + length > self.limits.max_bytes and self.acked < self.next_seq:
            return (
                f"it holds {self.bytes >> 20} MiB and may hold {self.limits.max_bytes >> 20} MiB; "
                f"events from seq {self.acked} on are not acked"
            )
        return ""

    def _cut_back(self) -> None:
        """After a write that failed: back to the last whole frame."""
        try:
            os.ftruncate(self._fd, self._active.length)
        except OSError as error:
            raise self._fail(error) from error

    def _not_written(self, error: OSError) -> FlumengError:
        """What to raise after a write that failed: a full disk is to be waited for."""
        if error.errno in FULL:
            return DiskFullError(f"journal {self.id}: {error.strerror}")
        return self._fail(error)

    def _fail(self, error: OSError) -> JournalFailedError:
        self._failure = error
        return JournalFailedError(f"journal {self.id} has failed: {error}")
