"""Writes the files of one open journal, and tracks how far they are on disk. After a failed write
or sync, except for lack of room, no more is written: the content of the disk is unknown."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import directory as directories
from flumeng.journal.log import segment
from flumeng.journal.log.chain import Chain
from flumeng.journal.log.checkpoint import Checkpoint, CheckpointFile
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.errors import JournalFailedError, held
from flumeng.journal.log.frame import FrameHeader
from flumeng.journal.log.segment import Segment, SegmentHeader
from flumeng.platform.errors import FlumengError

INTERVAL_SECONDS = 1.0
SYNC_THREADS = 4
OVERDUE_SECONDS = 10.0
"""A sync that runs longer is waited for, which bounds the events that a crash can lose."""


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SYNC_THREADS, "sync")


@dataclass(frozen=True)
class Reached:
    segment: int
    offset: int
    safe: int


class LazySync:
    """Syncs in the background, one at a time, begun at most once a second. Not thread-safe."""

    def __init__(self, disk: Disk, clock: Callable[[], float] = time.monotonic) -> None:
        self._disk = disk
        self._clock = clock
        self._running: tuple[Future[None], Reached] | None = None
        self._began_at = clock()

    def begin(self, fd: int, reached: Reached) -> None:
        """Sync the file, unless a sync runs or began within a second. Close it after ``settle``."""
        now = self._clock()
        if self._running is None and now - self._began_at >= INTERVAL_SECONDS:
            self._began_at = now
            self._running = (_pool().submit(self._disk.sync, fd), reached)

    def done(self) -> Reached | None:
        """Return the position of an ended or overdue sync, else None. Raises OSError on failure."""
        if self._running is None:
            return None
        if not self._running[0].done() and self._clock() - self._began_at < OVERDUE_SECONDS:
            return None
        return self.settle()

    def settle(self) -> Reached | None:
        """As ``done``, but wait for a running sync."""
        if self._running is None:
            return None
        (future, reached), self._running = self._running, None
        future.result()
        return reached

    def close(self) -> None:
        """Wait for a running sync; ignore its result."""
        if self._running is not None:
            wait([self._running[0]])
            self._running = None


class SegmentWriter:
    """The writer of a journal's files. ``checkpoint`` is never ahead of the disk. Writing raises
    HeldError without any change, and JournalFailedError."""

    def __init__(
        self, directory: Path, segments: Sequence[Segment], checkpoint: Checkpoint, disk: Disk
    ) -> None:
        self.chain = Chain(segments)
        self.checkpoint = checkpoint
        self._id = directory.name
        self._directory = directory
        self._disk = disk
        self._failure: Exception | None = None
        with contextlib.ExitStack() as undo:
            self._fd = os.open(self.chain.active.path, os.O_RDWR | os.O_CLOEXEC)
            undo.callback(os.close, self._fd)
            self._checkpoint_file = CheckpointFile(directory / checkpoints.NAME, disk)
            self._lazy = LazySync(disk) if checkpoint.durability == "spill" else None
            undo.pop_all()
        directories.make_spare(directory, disk)

    @property
    def sound(self) -> bool:
        return self._failure is None

    def require_sound(self) -> None:
        if self._failure is not None:
            raise JournalFailedError(
                f"journal {self._id} has failed and must be reopened: {self._failure}"
            ) from self._failure

    @property
    def is_behind(self) -> bool:
        active = self.chain.active
        return (self.checkpoint.segment, self.checkpoint.offset) != (active.base, active.length)

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self._fd)

    def write(self, header: FrameHeader, parts: Sequence[Any]) -> None:
        active = self.chain.active
        try:
            self._disk.write(self._fd, parts, active.length)
        except OSError as error:
            self._cut_back()
            raise self._not_written(error) from error
        active.grow(header)

    def sync(self, next_seq: int, *, now: bool = False, **changes: Any) -> None:
        """Sync all written frames; with ``now`` the checkpoint as well."""
        try:
            if self._lazy is not None:
                self._lazy.settle()
            self._disk.sync(self._fd)
        except OSError as error:
            raise self._fail(error) from error
        self._say_reached(self._reached(next_seq), now=now, **changes)

    def sync_lazily(self, next_seq: int) -> None:
        """Record the end of a finished sync, and begin the next one."""
        assert self._lazy is not None
        try:
            reached = self._lazy.done()
        except OSError as error:
            raise self._fail(error) from error
        if reached is not None:
            self._say_reached(reached, now=False)
        if self.is_behind:
            self._lazy.begin(self._fd, self._reached(next_seq))

    def write_checkpoint(self, *, now: bool, **changes: Any) -> None:
        """Write a checkpoint, which must not be ahead of the disk."""
        checkpoint = replace(self.checkpoint, **changes)
        try:
            self._checkpoint_file.write(checkpoint)
        except OSError as error:
            raise self._not_written(error) from error
        try:
            self._checkpoint_file.sync(now=now)
        except OSError as error:
            raise self._fail(error) from error
        self.checkpoint = checkpoint

    def roll(self, next_seq: int, state: Mapping[str, object], *, use_spare: bool) -> None:
        """Seal the active segment and begin the next, unless the active one has no events. On a
        full disk the spare file becomes the new segment, if allowed."""
        active = self.chain.active
        if next_seq == active.base:
            return
        self.sync(next_seq, now=True)
        header = SegmentHeader(self.checkpoint.journal, self.checkpoint.term, next_seq, active.link)
        spare = directories.spare(self._directory) if use_spare else None
        names = -1
        try:
            names = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fresh, fd = segment.begin(self._directory, header, state, self._disk, spare)
        except OSError as error:
            if names >= 0:
                os.close(names)
            raise self._not_written(error) from error
        try:
            self._disk.sync_directory(self._directory, names)
        except OSError as error:
            os.close(fd)
            raise self._fail(error) from error
        finally:
            os.close(names)
        os.close(self._fd)
        self._fd = fd
        self.chain.add(fresh)
        self.write_checkpoint(segment=fresh.base, offset=fresh.length, now=True)

    def drop(self, count: int) -> None:
        """Delete the oldest segments, after the checkpoint's floor has passed them."""
        if not count:
            return
        kept = self.chain.at(count)
        # After a roll with no room for its checkpoint, that one names a segment that goes now.
        moved = (
            {"segment": kept.base, "offset": kept.first}
            if self.checkpoint.segment < kept.base
            else {}
        )
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError as error:
            raise self._not_written(error) from error
        self.write_checkpoint(floor=kept.base, now=True, **moved)
        try:
            for old in self.chain.drop(count):
                segment.remove(old.path, names)
        except OSError as error:
            raise self._fail(error) from error
        directories.make_spare(self._directory, self._disk)

    def close(self) -> None:
        if self._lazy is not None:
            self._lazy.close()
        self._checkpoint_file.close()
        os.close(self._fd)
        self._failure = self._failure or ValueError("the journal is closed")

    def _reached(self, next_seq: int) -> Reached:
        return Reached(self.chain.active.base, self.chain.active.length, next_seq)

    def _say_reached(self, reached: Reached, *, now: bool, **changes: Any) -> None:
        self.write_checkpoint(
            segment=reached.segment, offset=reached.offset, safe=reached.safe, now=now, **changes
        )

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.chain.active.length)
        except OSError as error:
            raise self._fail(error) from error

    def _not_written(self, error: OSError) -> FlumengError:
        """Return HeldError for lack of room, descriptors or memory; else the journal fails."""
        return held(f"journal {self._id}", error) or self._fail(error)

    def _fail(self, error: OSError) -> JournalFailedError:
        self._failure = error
        return JournalFailedError(f"journal {self._id} has failed: {error}")
