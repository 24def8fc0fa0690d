"""The journal: a durable, single-writer, sequence-numbered log of received events.

Events below ``safe`` are on disk, readers see only these, a seq never names two events, and nothing
below ``safe`` is ever truncated. The module knows nothing of sources, ZooKeeper or the network.

With durability ``spill`` events below ``safe`` are in the page cache, and on disk within about a
second. After a reboot, a journal that may have lost events rejects appends, since readers may have
seen the lost seqs.

A directory holds one journal: segment files, the checkpoint and the lock. One thread writes
(append, sync, trim, maintain, close); any thread may read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from flumeng.journal.log import directory as directories
from flumeng.journal.log import reading, recovery
from flumeng.journal.log.chain import Chain
from flumeng.journal.log.checkpoint import NO_BOOT, Checkpoint, Durability, term_by_time
from flumeng.journal.log.contract import Position
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.encryption import Keyring
from flumeng.journal.log.errors import AboveSafeError, DataLossError, DiskFullError, HeldError
from flumeng.journal.log.frame import TARGET_BYTES, FrameHeader, Payload, identity
from flumeng.journal.log.journal_cipher import JournalCipher, KeyReference
from flumeng.journal.log.limits import Limits, Room, no_limit, size_text
from flumeng.journal.log.listeners import Listeners
from flumeng.journal.log.segment import Window
from flumeng.journal.log.segment_writer import SegmentWriter
from flumeng.platform.errors import CorruptError, FlumengError, UserError

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
KEEP_FREE_BYTES = 64 << 20
ROLL_WORTH_BYTES = 1 << 20


class Journal:
    """An open journal, made by ``create`` or ``open``. ``floor <= safe <= next_seq``: readers get
    [floor, readable), [safe, next_seq) is not durable. ``limits`` and ``room`` may be replaced."""

    id: str
    limits: Limits
    room: Callable[[], Room]
    next_seq: int
    cipher: JournalCipher
    acked: int
    """The last ack passed to ``trim`` since the journal was opened, at least the floor."""
    listeners: Listeners
    """Notified by sync, trim, maintain, close_for_appends and a full append, after a change."""

    full: bool
    """Whether the last append was rejected for lack of space."""

    @staticmethod
    def create(
        directory: Path,
        journal: str,
        *,
        durability: Durability = "disk",
        state: Mapping[str, object] = MappingProxyType({}),
        limits: Limits | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        keyring: Keyring | None = None,
        disk: Disk | None = None,
    ) -> Journal:
        """Create and open ``directory/<journal>``, encrypted with the first key of a ``keyring``.
        Raises UserError for an invalid or used id and for an unwritable directory, HeldError."""
        path = directories.path_of(directory, journal)
        with directories.plain_errors(path):
            key = KeyReference.of(keyring)
            directories.create(path, disk or Disk(), durability, state, key=key)
        return Journal.open(
            path,
            keyring=keyring,
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
        keyring: Keyring | None = None,
        disk: Disk | None = None,
    ) -> Journal:
        """Recover the journal and begin a new term. An encrypted journal accepts events once it has
        its key. Raises UserError when the journal is in use or inaccessible, CorruptError when
        synced data is damaged (no file is changed then), HeldError; KeyMissingError (keyring)."""
        with directories.plain_errors(directory):
            journal = Journal(
                directory, limits or Limits(), segment_bytes, keep_free_bytes, disk or Disk()
            )
            if keyring is not None:
                try:
                    journal.cipher.use(keyring)
                except (FlumengError, OSError):
                    journal.close()
                    raise
            return journal

    @staticmethod
    def find(directory: Path) -> list[Path]:
        return directories.find(directory)

    def __init__(
        self, directory: Path, limits: Limits, segment_bytes: int, keep_free_bytes: int, disk: Disk
    ) -> None:
        self.id = directory.name
        self.limits = limits
        self.room = no_limit
        self.listeners = Listeners()
        self.full = False
        self._directory = directory
        self._identity = identity(self.id)
        self._segment_bytes = segment_bytes
        self._keep_free_bytes = keep_free_bytes
        self._disk = disk
        self._open = True
        with contextlib.ExitStack() as undo:
            self._lock = directories.lock(directory)
            undo.callback(os.close, self._lock)
            self.cipher = JournalCipher(directory, disk)
            recovered = recovery.recover(directory, self._identity, disk)
            self._state = recovered.state
            self.next_seq = self._written = recovered.next_seq
            self._writer = SegmentWriter(directory, recovered.segments, recovered.checkpoint, disk)
            undo.callback(self._writer.close)
            self.acked = self.floor
            self._writer.write_checkpoint(
                term=self._opening_term(),
                segment=self._chain.active.base,
                offset=self._chain.active.length,
                safe=self.next_seq,
                closed=self.closed or self._lost_its_kernel(),
                boot=disk.boot() if self.durability == "spill" else NO_BOOT,
                now=True,
            )
            undo.pop_all()
        if self.readable < self.safe:
            log.error(
                "journal %s: readers stop at seq %d of %d, where events are lost; "
                "`flumeng journal repair --accept-loss` lets them continue",
                *(self.id, self.readable, self.safe),
            )

    @property
    def term(self) -> int:
        """A number that grows with each opening; on disk before the first append."""
        return self._checkpoint.term

    @property
    def durability(self) -> Durability:
        return self._checkpoint.durability

    @property
    def floor(self) -> int:
        """The lowest kept seq: the base of the first segment."""
        return self._checkpoint.floor

    @property
    def synced(self) -> int:
        """The seq below which all events are on this disk, or with ``spill`` in the page cache."""
        return max(self._checkpoint.safe, self._written)

    @property
    def safe(self) -> int:
        """The seq below which all events are as durable as the journal promises."""
        return self.synced

    @property
    def readable(self) -> int:
        """The seq at which readers stop: ``safe``, or the start of an unaccepted loss."""
        return min(self.safe, self._checkpoint.barrier)

    @property
    def lost(self) -> int:
        return self._checkpoint.lost

    @property
    def bytes(self) -> int:
        return self._chain.bytes

    @property
    def closed(self) -> bool:
        """Whether the journal permanently rejects appends."""
        return self._checkpoint.closed

    @property
    def state(self) -> Mapping[str, object]:
        """A copy of the source state as of the last append. Thread-safe."""
        return MappingProxyType(dict(self._state))

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        return self._chain.sizes

    @property
    def lags(self) -> Mapping[str, int]:
        return {}

    @property
    def restless(self) -> bool:
        """Whether ``maintain`` must be called periodically."""
        if self.durability == "spill" and self._writer.is_behind:
            return True
        retained = self.limits.retain and self.bytes >= ROLL_WORTH_BYTES
        return retained or self._chain.acked(self.acked) > 0

    @property
    def _checkpoint(self) -> Checkpoint:
        return self._writer.checkpoint

    @property
    def _chain(self) -> Chain:
        return self._writer.chain

    def append(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> int:
        """Write one frame and return its first seq; it is not synced and not readable yet.

        ``state``: changed keys of source state, None deletes a key; a batch without rows carries
        state alone. Raises UserError (batch over the limits, journal closed), HeldError (nothing
        was written; try again) and JournalFailedError.
        """
        return self.append_encoded(self.encode(batch, state))

    def encode(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> Payload:
        return Payload.encode(batch, state)

    def append_encoded(self, payload: Payload) -> int:
        """Append a batch that ``encode`` has encoded; otherwise as ``append``."""
        self._writer.require_sound()
        if self.closed:
            raise UserError(f"journal {self.id} is closed: it takes no more events")
        if not payload.rows and not payload.state:
            return self.next_seq
        header, parts = payload.at(self._identity, self.term, self.next_seq)
        header, parts = self.cipher.sealed(header, parts, payload.state_blob, payload.message)
        self._write(header, parts, payload.state)
        return header.first_seq

    def sync(self) -> int:
        """Make all appended events durable, then readable; return ``safe``. Raises HeldError: try
        again. After a JournalFailedError none may be acknowledged, even after a retry: the kernel
        may have dropped pages."""
        self._writer.require_sound()
        if self.durability == "spill":
            self._writer.sync_lazily(self.next_seq)
            self._written = self.next_seq
        elif self._writer.is_behind or self.synced < self.next_seq:
            self._writer.sync(self.next_seq)
        self._tell()
        return self.safe

    def confirms(self, end: int) -> bool:
        """Return whether events below ``end`` may be acknowledged: always after a sync."""
        return end <= self.safe

    def on_confirmed(self, wake: Callable[[], None]) -> None:
        """Do nothing: acks do not wait for replicas."""

    def maintain(self) -> None:
        """Sync with ``spill``; drop acked segments past retention or whose space is needed."""
        self._writer.require_sound()
        if self.durability == "spill":
            self._writer.sync_lazily(self.next_seq)
        self._writer.drop(self._chain.expired(self.acked, self.limits))
        self._release(lambda: self._free_bytes() >= TARGET_BYTES)
        self._tell()

    def trim(self, ack: int) -> None:
        """Drop segments whose events all lie below ``ack``, except retained ones. An ack may move
        back (an operator's reset). Without retention, an acked active segment from 1 MiB on is
        replaced. Needs no free space. Raises as ``sync``, and CorruptError above ``safe``."""
        self._writer.require_sound()
        if ack > self.safe:
            raise CorruptError(
                f"journal {self.id}: ack {ack} is above its end {self.safe}; events that a reader "
                "has seen are missing"
            )
        self.acked = max(self.floor, ack)
        if not self.limits.retain:
            self._seal_acked()
        self._writer.drop(self._chain.expired(self.acked, self.limits))
        self._tell()

    def close_for_appends(self) -> int:
        """Sync, permanently reject appends, and return the end seq."""
        self._writer.require_sound()
        if not self.closed:
            self._writer.sync(self.next_seq, closed=True, now=True)
        self._tell()
        return self.next_seq

    def close(self) -> None:
        """Sync, unless the journal has failed, and release the lock. Raises as ``sync``."""
        if not self._open:
            return
        self._open = False
        try:
            if self._writer.sound:
                self._writer.sync(self.next_seq, now=True, boot=NO_BOOT)
        finally:
            self._writer.close()
            os.close(self._lock)

    def remove(self) -> None:
        doomed = directories.hidden(self._directory)
        self._directory.rename(doomed)
        self._disk.sync_directory(doomed.parent)
        self.close()
        shutil.rmtree(doomed)

    def read_frames(self, start: int, end: int) -> Iterator[Window]:
        """Yield windows of whole frames that cover [start, end), in order, decrypted.

        The first and last frame may extend beyond the range. Raises BelowFloorError,
        AboveSafeError, DataLossError where events are lost, KeyMissingError, HeldError, and
        CorruptError for a damaged header or encrypted frame; other damage is found by the decoder.
        """
        if end > self.safe:
            raise AboveSafeError(
                f"journal {self.id}: seq {end} is above its last durable event, at {self.safe}"
            )
        if end > self.readable:
            raise DataLossError(
                f"journal {self.id}: events from seq {self.readable} on are lost; "
                "`flumeng journal repair --accept-loss` lets readers continue behind them"
            )
        yield from self.cipher.opened(self._windows(start, end))

    def _windows(self, start: int, end: int) -> Iterator[Window]:
        """Yield windows of frames as stored, possibly encrypted."""
        return self._chain.windows(start, end)

    def read(self, start: int, end: int, *, replayed: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the events of [start, end), as ``reading.rows``. Raises as ``read_frames``."""
        frames = (frame for window in self.read_frames(start, end) for frame in window)
        return reading.rows(frames, self.id, start, end, replayed=replayed)

    def check(self) -> None:
        assert self.floor == self._chain.floor <= self.acked <= self.safe <= self.next_seq
        assert self._checkpoint.safe <= self.synced
        active = self._chain.active
        assert self._checkpoint.segment < active.base or self._checkpoint.offset <= active.length
        self._chain.check(sound=self._writer.sound)

    def _opening_term(self) -> int:
        return max(self.term + 1, term_by_time())

    def _roll_is_due(self, header: FrameHeader) -> bool:
        del header
        active = self._chain.active
        return active.length >= self.limits.segment_bytes(self._segment_bytes, active.first)

    def _write(self, header: FrameHeader, parts: Sequence[Any], state: dict[str, object]) -> None:
        if self._roll_is_due(header):
            self._writer.roll(self.next_seq, self._state, use_spare=False)
        self._require_room(header.length)
        self._writer.write(header, parts)
        recovery.merge_state(self._state, state)
        self.next_seq = header.end

    def _lost_its_kernel(self) -> bool:
        """Return whether a reboot before the last sync may have lost acknowledged events."""
        boot = self._checkpoint.boot
        lost = boot not in (NO_BOOT, self._disk.boot())
        if lost and not self.closed:
            log.error(
                "journal %s: the machine went down before all events were on disk: those of "
                "the last seconds may be lost; it ends at seq %d and takes no more events",
                *(self.id, self.next_seq),
            )
        return lost

    def _require_room(self, length: int) -> None:
        """Drop acked segments to make room. Raises DiskFullError when that is not enough."""
        self._release(lambda: not self._lack(length))
        lack = self._lack(length)
        self.full = lack is not None
        if lack is not None:
            why, cause = lack
            self._tell()
            raise DiskFullError(f"journal {self.id}: {why}", cause)

    def _tell(self) -> None:
        self.listeners.tell(Position.of(self))

    def _release(self, enough: Callable[[], bool]) -> None:
        while not enough() and (self._chain.acked(self.acked) or self._seal_acked()):
            self._writer.drop(1)

    def _seal_acked(self) -> bool:
        """Replace an active segment of at least 1 MiB if all is acked; return whether it was."""
        active = self._chain.active
        if self.acked < self.next_seq or active.length - active.first < ROLL_WORTH_BYTES:
            return False
        try:
            self._writer.roll(self.next_seq, self._state, use_spare=True)
        except HeldError:
            return False
        return True

    def _free_bytes(self) -> int:
        """Return the bytes by which all journals of this node together may grow."""
        return min(self.room().left, self._writer.free_bytes() - self._keep_free_bytes)

    def _lack(self, length: int) -> tuple[str, str] | None:
        """Return why a frame has no room (a sentence and a short cause), or None. A journal with
        nothing to trim may exceed its share and ``max_bytes``, or it would wait forever."""
        free = self._writer.free_bytes()
        if free < self._keep_free_bytes + length:
            kept = self._keep_free_bytes >> 20
            why = (
                f"{free >> 20} MiB are free on the disk of {self._directory}, "
                f"{kept} MiB must stay free"
            )
            return why, f"disk full: {free >> 20} MiB free, {kept} MiB are kept free"
        room = self.room()
        if room.left < length:
            why = "all journals here together have reached their limit"
            return why, "journals full: those of this node have reached the limit of its policy"
        waits = self.acked < self.next_seq or self._chain.acked(self.acked)
        left = min(free - self._keep_free_bytes, room.left) - length
        if waits and not room._replace(left=left).allows(self.bytes + length):
            why = (
                f"it holds {self.bytes >> 20} MiB, and the remaining {left >> 20} MiB are kept for "
                f"other journals; events from seq {self.acked} on are not acked"
            )
            held, kept_text = size_text(self.bytes), size_text(left)
            return why, f"disk share full: {held} held, {kept_text} kept for other flows"
        if self.bytes + length > self.limits.max_bytes and waits:
            most = self.limits.max_bytes
            why = (
                f"it holds {self.bytes >> 20} MiB and may hold {most >> 20} MiB; "
                f"events from seq {self.acked} on are not acked"
            )
            return why, f"journal full: {size_text(self.bytes)} of {size_text(most)}"
        return None
