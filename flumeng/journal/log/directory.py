"""The directory of a journal: created atomically, and locked by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from flumeng.events.journal_names import is_id
from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import journal_cipher, segment
from flumeng.journal.log import replica as replicas
from flumeng.journal.log.checkpoint import Checkpoint, CheckpointFile, Durability
from flumeng.journal.log.disk import DAMAGED, Disk
from flumeng.journal.log.errors import held
from flumeng.journal.log.frame import identity
from flumeng.journal.log.journal_cipher import KeyReference
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.segment import SegmentHeader
from flumeng.platform.errors import CorruptError, UserError

_LOCK = "lock"
_HIDDEN = ".incomplete"
_SPARE = "spare"
_SPARE_BYTES = 64 << 10


def path_of(parent: Path, journal: str) -> Path:
    """Return the directory of a journal. Raises UserError for an invalid id."""
    if not is_id(journal):
        raise UserError(f"invalid journal id {journal!r}: it must be the name of a directory")
    return parent / journal


def create(
    path: Path,
    disk: Disk,
    durability: Durability,
    state: Mapping[str, object],
    *,
    key: KeyReference | None = None,
    replica: Replica | None = None,
    base: int = 0,
) -> None:
    """Create the directory of a journal without events, with first seq ``base``. It is made under a
    hidden name, synced and renamed, so it is never incomplete. Raises UserError, OSError."""
    if path.exists():
        raise UserError(f"the journal directory {path} exists already")
    _make_parents(path.parent, disk)
    unnamed = hidden(path)
    try:
        unnamed.mkdir(mode=0o700)
        if key is not None:
            journal_cipher.write(unnamed, key, disk)
        if replica is not None:
            replicas.write(unnamed, replica, disk)
        first = SegmentHeader(identity(path.name), 0, base, None)
        _fill(unnamed, first, disk, durability, state)
        unnamed.rename(path)
    except OSError:
        shutil.rmtree(unnamed, ignore_errors=True)
        raise
    disk.sync_directory(path.parent)


def _fill(
    directory: Path,
    header: SegmentHeader,
    disk: Disk,
    durability: Durability,
    state: Mapping[str, object],
) -> None:
    owner, base = header.journal, header.base
    first = segment.create(directory, header, state, disk)
    (directory / checkpoints.NAME).touch(mode=0o600)
    file = CheckpointFile(directory / checkpoints.NAME, disk)
    try:
        file.write(Checkpoint(owner, 0, base, first.length, base, base, durability=durability))
        file.sync(now=True)
    finally:
        file.close()
    disk.sync_directory(directory)


def _make_parents(directory: Path, disk: Disk) -> None:
    if not directory.exists():
        _make_parents(directory.parent, disk)
        directory.mkdir(exist_ok=True, mode=0o700)
        disk.sync_directory(directory.parent)


def hidden(path: Path) -> Path:
    """Return the hidden name of a journal during creation or removal, and delete an old one."""
    name = path.with_name(f".{path.name}{_HIDDEN}")
    if name.exists():
        shutil.rmtree(name)
    return name


def find(parent: Path) -> list[Path]:
    """Return the journals in a directory; delete remains of interrupted creations and removals."""
    if not parent.exists():
        return []
    for left_over in parent.glob(f".*{_HIDDEN}"):
        shutil.rmtree(left_over, ignore_errors=True)
    return sorted(path for path in parent.iterdir() if path.is_dir() and path.name[0] != ".")


def lock(path: Path, *, make: bool = True) -> int:
    """Lock a journal; closing the returned descriptor unlocks it. Raises UserError when in use."""
    how = os.O_RDWR | os.O_CREAT if make else os.O_RDONLY
    fd = os.open(path / _LOCK, how | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise UserError(f"journal {path} is in use by another process") from error
    return fd


def in_use(path: Path) -> bool:
    try:
        os.close(lock(path, make=False))
    except UserError:
        return True
    except OSError:
        return False
    return False


def spare(path: Path) -> Path:
    """Return the path of the spare file: preallocated blocks for a new segment on a full disk."""
    return path / _SPARE


def make_spare(path: Path, disk: Disk) -> None:
    """Preallocate the spare file, if it is absent and the disk has room."""
    file = spare(path)
    if file.exists():
        return
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            disk.allocate(fd, _SPARE_BYTES)
        finally:
            os.close(fd)
    except OSError:
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of creating or opening a journal into an error of flumeng. A failed sync may
    count as damage too: it has the error of a bad sector, which no retry makes readable."""
    try:
        yield
    except OSError as error:
        if waits := held(str(path), error):
            raise waits from error
        kind = CorruptError if error.errno in DAMAGED else UserError
        raise kind(f"cannot open the journal {path}: {error.strerror}") from error
