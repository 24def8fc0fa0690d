"""The adapter to the file system for everything in a journal that must survive a crash.

It translates nothing and decides nothing: errors leave as ``OSError``. Tests pass a disk of their
own to make a write or a sync fail, or to learn what a power cut would have kept.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flumeng.platform.metrics.histogram import Histogram

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a write says when there is no more room
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # of this process; of the system

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Disk:
    """Writes, syncs and free space of a real disk. Holds no state."""

    def write(self, fd: int, parts: Sequence[Any], offset: int) -> None:
        """Write all parts, one after the other, from ``offset``; a short write is continued."""
        left = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
        while left:
            written = os.pwritev(fd, left, offset)
            offset += written
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]

    def allocate(self, fd: int, size: int) -> None:
        """Take ``size`` bytes of the disk for a file."""
        os.posix_fallocate(fd, 0, size)

    def sync(self, fd: int) -> None:
        """Return when all that was written is on the medium."""
        os.fdatasync(fd)

    def sync_directory(self, directory: Path, opened: int | None = None) -> None:
        """Return when the names in the directory are on the medium. ``opened`` is its descriptor
        when it is open already."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY) if opened is None else opened
        try:
            os.fsync(fd)
        finally:
            if opened is None:
                os.close(fd)

    def free_bytes(self, fd: int) -> int:
        """Bytes that an unprivileged process may still write on the file system of ``fd``."""
        status = os.fstatvfs(fd)
        return status.f_bavail * status.f_frsize

    def boot(self) -> bytes:
        """16 bytes that are others after each start of the machine: what was written since the
        same boot, the kernel still has. Unknown counts as another boot."""
        try:
            return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
        except (OSError, ValueError):
            return uuid.uuid4().bytes


class TimedDisk(Disk):
    """A real disk that keeps how long its syncs took."""

    def __init__(self) -> None:
        self.sync_seconds = Histogram()

    def sync(self, fd: int) -> None:
        began = time.perf_counter()
        super().sync(fd)
        self.sync_seconds.add(time.perf_counter() - began)


def read_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` from ``offset``; returns the bytes read, fewer only at the end of the file."""
    done = 0
    while done < view.nbytes:
        read = os.preadv(fd, [view[done:]], offset + done)
        if not read:
            break
        done += read
    return done
