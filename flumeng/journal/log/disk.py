"""The file system of journals; raises OSError. Tests replace it to fail writes or cut power."""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flumeng.platform.metrics.histogram import Histogram

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a write without room
DAMAGED = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)  # of the disk; of the file system
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # of this process; of the system

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Disk:
    def write(self, fd: int, parts: Sequence[Any], offset: int) -> None:
        """Write all parts, one after another, from ``offset`` on; short writes are continued."""
        left = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
        while left:
            written = os.pwritev(fd, left, offset)
            offset += written
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]

    def allocate(self, fd: int, size: int) -> None:
        os.posix_fallocate(fd, 0, size)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_directory(self, directory: Path, opened: int | None = None) -> None:
        """Sync the names in a directory; ``opened`` is its descriptor, if it is open already."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY) if opened is None else opened
        try:
            os.fsync(fd)
        finally:
            if opened is None:
                os.close(fd)

    def free_bytes(self, fd: int) -> int:
        """Return the bytes that an unprivileged process may still write to the file system."""
        status = os.fstatvfs(fd)
        return status.f_bavail * status.f_frsize

    def boot(self) -> bytes:
        """Return 16 bytes that identify this boot of the machine; random when unknown."""
        try:
            return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
        except (OSError, ValueError):
            return uuid.uuid4().bytes


class TimedDisk(Disk):
    """A disk that measures the duration of syncs."""

    def __init__(self) -> None:
        self.sync_seconds = Histogram()

    def sync(self, fd: int) -> None:
        began = time.perf_counter()
        super().sync(fd)
        self.sync_seconds.add(time.perf_counter() - began)


def read_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` from ``offset``; return the bytes read, fewer only at the end of the file."""
    done = 0
    while done < view.nbytes:
        read = os.preadv(fd, [view[done:]], offset + done)
        if not read:
            break
        done += read
    return done
