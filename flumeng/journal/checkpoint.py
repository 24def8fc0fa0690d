"""The checkpoint: one block of 512 bytes that says how far the journal is known to be on disk.

It is written in place after each sync of the data, never before, so it may be behind the data but
never ahead. What lies below its offset was acknowledged: damage there is never cut away. It needs
no new space on disk, so a full disk cannot stop it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from flumeng.errors import CorruptError, UserError
from flumeng.journal.disk import Disk

NAME = "checkpoint"
BLOCK_BYTES = 512
MAGIC = b"FLCP"
VERSION = 1
SYNC_INTERVAL_SECONDS = 0.1
# magic, version, closed, reserved, term, segment, offset, safe, floor, journal; zeros; the CRC.
FIELDS = struct.Struct("<4sBBHQQQQQ16s")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything below ``offset`` in the segment that begins at ``segment`` is on disk, and all
    segments before it; that is every event below ``safe``."""

    journal: bytes
    term: int
    segment: int
    offset: int
    safe: int
    floor: int
    closed: bool

    def pack(self) -> bytes:
        fields = FIELDS.pack(
            MAGIC,
            VERSION,
            self.closed,
            0,
            self.term,
            self.segment,
            self.offset,
            self.safe,
            self.floor,
            self.journal,
        )
        block = fields.ljust(BLOCK_BYTES - _CRC.size, b"\0")
        return block + _CRC.pack(crc32c(block))

    @classmethod
    def unpack(cls, block: bytes, journal: bytes, path: Path) -> Checkpoint:
        """Raises CorruptError, which names ``path``."""
        if len(block) != BLOCK_BYTES:
            raise CorruptError(f"{path}: {len(block)} bytes, a checkpoint has {BLOCK_BYTES}")
        body = block[: -_CRC.size]
        if crc32c(body) != _CRC.unpack_from(block, len(body))[0]:
            raise CorruptError(f"{path}: the checksum does not match")
        magic, version, closed, _, term, segment, offset, safe, floor, owner = FIELDS.unpack_from(
            body
        )
        if magic != MAGIC:
            raise CorruptError(f"{path}: not a checkpoint")
        if version != VERSION:
            raise UserError(f"{path}: format version {version}, this flumeng reads {VERSION}")
        if owner != journal:
            raise CorruptError(f"{path}: belongs to another journal (was the directory renamed?)")
        return cls(owner, term, segment, offset, safe, floor, bool(closed))


class CheckpointFile:
    """The open checkpoint of one journal. One writer."""

    def __init__(self, path: Path, disk: Disk, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._disk = disk
        self._clock = clock
        self._synced_at = clock()

    def write(self, checkpoint: Checkpoint) -> None:
        """Overwrite the block. A killed process leaves it all the same, in the page cache."""
        self._disk.write(self._fd, [checkpoint.pack()], 0)

    def sync(self, *, now: bool) -> None:
        """Put the block on the medium: ``now``, or if that was last done 100 ms ago or more.

        So a power cut may leave an older one, which only widens what counts as a possibly torn
        tail.
        """
        if now or self._clock() - self._synced_at >= SYNC_INTERVAL_SECONDS:
            self._disk.sync(self._fd)
            self._synced_at = self._clock()

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path, journal: bytes) -> Checkpoint:
    """Raises CorruptError when it is missing, cut short or damaged."""
    try:
        block = path.read_bytes()
    except FileNotFoundError as error:
        raise CorruptError(f"{path} is missing: how far events are on disk is unknown") from error
    return Checkpoint.unpack(block, journal, path)
