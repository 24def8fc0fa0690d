"""The checkpoint: one block of 512 bytes that records how far a journal is on disk. Written in
place after each sync of the data, it may lag the data but never leads it, and a full disk cannot
stop it. Recovery never truncates below its offset: those events may have been acknowledged."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from crc32c import crc32c

from flumeng.journal.log.disk import Disk
from flumeng.platform.errors import CorruptError, UserError

NAME = "checkpoint"
BLOCK_BYTES = 512
MAGIC = b"FLCP"
VERSION = 1
SYNC_INTERVAL_SECONDS = 0.1
# magic, version, closed, durability, reserved, term, segment, offset, safe, floor, journal, boot,
# barrier, lost; zeros; the CRC.
FIELDS = struct.Struct("<4sBBBBQQQQQ16s16sQQ")
_CRC = struct.Struct("<I")

Durability = Literal["disk", "spill", "memory", "replicated"]
"""Events are acknowledged once synced, written, received, or synced on all in-sync replicas."""

NO_BOOT = bytes(16)
NO_BARRIER = 2**64 - 1
_DURABILITIES: tuple[Durability, ...] = get_args(Durability)


def term_by_time() -> int:
    """Return the lowest term for an opening now: microseconds since the epoch. So a journal that is
    restored from an old copy has no term in common with the events written since then."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a journal is on disk. All events below ``safe`` are: in ``segment`` up to byte
    ``offset``, and in all earlier segments. ``boot`` is the boot id of the machine while events may
    be only in its memory. Readers stop at ``barrier``, the start of an unaccepted loss."""

    journal: bytes
    term: int
    segment: int
    offset: int
    safe: int
    floor: int
    closed: bool = False
    durability: Durability = "disk"
    boot: bytes = NO_BOOT
    barrier: int = NO_BARRIER
    lost: int = 0

    def pack(self) -> bytes:
        fields = FIELDS.pack(
            MAGIC,
            VERSION,
            self.closed,
            _DURABILITIES.index(self.durability),
            0,
            self.term,
            self.segment,
            self.offset,
            self.safe,
            self.floor,
            self.journal,
            self.boot,
            self.barrier,
            self.lost,
        )
        block = fields.ljust(BLOCK_BYTES - _CRC.size, b"\0")
        return block + _CRC.pack(crc32c(block))

    @classmethod
    def unpack(cls, block: bytes, journal: bytes, path: Path) -> Checkpoint:
        if len(block) != BLOCK_BYTES:
            raise CorruptError(f"checkpoint {path} has {len(block)} bytes, not {BLOCK_BYTES}")
        body = block[: -_CRC.size]
        if crc32c(body) != _CRC.unpack_from(block, len(body))[0]:
            raise CorruptError(f"checkpoint {path}: the checksum does not match")
        (magic, version, closed, durability, _, term, segment, offset, safe, floor, *rest) = (
            FIELDS.unpack_from(body)
        )
        if magic != MAGIC:
            raise CorruptError(f"{path} is not a checkpoint file")
        if version != VERSION or durability >= len(_DURABILITIES):
            raise UserError(f"{path} has format version {version}, written by a newer flumeng")
        owner, boot, barrier, lost = rest
        if owner != journal:
            raise CorruptError(f"{path} belongs to another journal (was the directory renamed?)")
        return cls(
            owner,
            term,
            segment,
            offset,
            safe,
            floor,
            bool(closed),
            _DURABILITIES[durability],
            boot,
            barrier,
            lost,
        )


class CheckpointFile:
    def __init__(self, path: Path, disk: Disk) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._disk = disk
        self._synced_at = time.monotonic()

    def write(self, checkpoint: Checkpoint) -> None:
        """Overwrite the block in the page cache, where it survives a crash of the process."""
        self._disk.write(self._fd, [checkpoint.pack()], 0)

    def sync(self, *, now: bool) -> None:
        """Sync the file, unless ``now`` is false and the last sync was less than 100 ms ago. An
        older block on disk only lengthens the part that recovery may find torn."""
        if now or time.monotonic() - self._synced_at >= SYNC_INTERVAL_SECONDS:
            self._disk.sync(self._fd)
            self._synced_at = time.monotonic()

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path, journal: bytes) -> Checkpoint:
    """Return the checkpoint in a file. Raises CorruptError, UserError (newer version), OSError."""
    try:
        block = path.read_bytes()
    except FileNotFoundError as error:
        raise CorruptError(f"{path} is missing: how far events are on disk is unknown") from error
    return Checkpoint.unpack(block, journal, path)
