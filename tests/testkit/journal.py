"""Helpers for tests around a journal: numbered events, and a disk that fails on request."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.disk import Disk, TimedDisk


def numbered_events(first: int, count: int, body_bytes: int = 12) -> pa.RecordBatch:
    """Events whose body is their number, padded with dots to ``body_bytes``."""
    seqs = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "body": [str(seq).encode().ljust(body_bytes, b".") for seq in seqs],
            "ts": seqs,
            "host": ["host"] * count,
            "attrs": [[("source", "test")]] * count,
        },
        schema=EVENT_SCHEMA,
    )


ATOMIC_BYTES = 512


class KilledError(BaseException):
    """The process that used the disk counts as dead; product code must not catch this."""


class TroubledDisk(TimedDisk):
    """Writes to a real disk; calls ``before_sync``, and has no room while it is ``full``."""

    def __init__(self) -> None:
        super().__init__()
        self.before_sync: Callable[[], None] = lambda: None
        self.full = False

    def sync(self, fd: int) -> None:
        self.before_sync()
        super().sync(fd)

    def free_bytes(self, fd: int) -> int:
        return 0 if self.full else super().free_bytes(fd)

    def fail_syncs(self) -> None:
        def fail() -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        self.before_sync = fail

    def heal(self) -> None:
        self.before_sync = lambda: None


class FaultyDisk(Disk):
    """Writes to a real disk and, instead of syncing, remembers the bytes that a sync would have
    stored.

    For small journals: it keeps them in memory.

    To crash a journal: set ``dead``, close it (its files do not change), then revive. To crash it
    in the middle of an operation: set ``lives_for``, and catch KilledError.
    """

    def __init__(self) -> None:
        self.dead = False  # writes and syncs are lost, as those of a killed process
        self.lives_for: int | None = None  # writes and syncs, then KilledError; None: for ever
        self.free: int | None = None  # bytes left; None: the real disk's
        self.failing_sync: int | None = None  # errno of the next sync
        self.writes: list[int] = []  # offsets
        self._failing_write: tuple[int, int] | None = None
        self._durable: dict[int, bytes] = {}  # inode -> its bytes on the medium
        self._names: dict[int, dict[str, bytes]] = {}  # directory -> names at its last sync
        self._boots = 1

    def fail_write(self, code: int, *, room: int = 0) -> None:
        """Write the next ``room`` bytes and then fail once with that errno.

        Up to 512 bytes are written whole or not at all, as into one page.
        """
        self._failing_write = (room, code)

    def synced_names(self, directory: Path) -> set[str]:
        """The names in a directory that a power cut would leave."""
        return set(self._names.get(directory.stat().st_ino, ()))

    @property
    def fails(self) -> bool:
        """Whether a requested failure is still to come."""
        return self._failing_write is not None or self.failing_sync is not None

    def heal(self) -> None:
        """End all faults."""
        self.failing_sync = self._failing_write = self.lives_for = None
        self.dead = False

    def _live(self) -> bool:
        """Whether the next write or sync is carried out."""
        if self.lives_for is not None and not self.dead:
            self.dead = self.lives_for == 0
            self.lives_for -= 1
            if self.dead:
                raise KilledError
        return not self.dead

    def write(self, fd: int, parts: Sequence[Any], offset: int) -> None:
        if not self._live():
            return
        status = os.fstat(fd)
        if not status.st_size:
            self._durable.pop(status.st_ino, None)  # that of a deleted file
        data = b"".join(bytes(part) for part in parts)
        self.writes.append(offset)
        if self._failing_write is not None:
            room, code = self._failing_write
            if len(data) > room:
                self._failing_write = None
                super().write(fd, [data[: room if len(data) > ATOMIC_BYTES else 0]], offset)
                raise OSError(code, os.strerror(code))
            self._failing_write = (room - len(data), code)
        super().write(fd, [data], offset)

    def sync(self, fd: int) -> None:
        if not self._live():
            return
        if self.failing_sync is not None:
            code, self.failing_sync = self.failing_sync, None
            raise OSError(code, os.strerror(code))
        self._durable[os.fstat(fd).st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def sync_directory(self, directory: Path, _opened: int | None = None) -> None:
        if not self._live():
            return
        self._names[directory.stat().st_ino] = {
            path.name: self._durable.get(path.stat().st_ino, b"") for path in directory.iterdir()
        }

    def free_bytes(self, fd: int) -> int:
        return super().free_bytes(fd) if self.free is None else self.free

    def boot(self) -> bytes:
        return self._boots.to_bytes(16, "little")

    def power_cut(
        self, directory: Path, survive: Callable[[str, bytes, bytes], bytes], *, names_survive: bool
    ) -> None:
        """Bring the files of a dead journal to a state that a power cut may leave.

        ``survive(name, on the medium, written)`` returns the content of each file. Without
        ``names_survive`` all names are those of the directory's last sync.
        """
        self._boots += 1
        synced = self._names[directory.stat().st_ino]
        now = {path.name: path for path in directory.iterdir()}
        for name, path in now.items():
            if names_survive or name in synced:
                durable = self._durable.get(path.stat().st_ino, b"")
                path.write_bytes(survive(name, durable, path.read_bytes()))
            else:
                path.unlink()
        if not names_survive:
            for name in synced.keys() - now.keys():
                (directory / name).write_bytes(synced[name])
        self._durable = {path.stat().st_ino: path.read_bytes() for path in directory.iterdir()}
