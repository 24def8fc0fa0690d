"""The file that marks a journal's directory as a replica; replaced atomically. The replica's term
is in the journal's checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from flumeng.journal.log.disk import Disk
from flumeng.platform.errors import CorruptError

NAME = "replica"
_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Replica:
    """The identity and progress of a replica. ``id``: ``NODE/ID``, never reused. ``lineage``: the
    id of the events' history. ``checkpoint``: events below it are on every in-sync replica."""

    id: str
    lineage: str
    checkpoint: int = 0

    @classmethod
    def new(cls, node: str, lineage: str = "") -> Replica:
        """Return a new replica; without a ``lineage`` it begins a new history."""
        return cls(f"{node}/{uuid.uuid4().hex[:8]}", lineage or uuid.uuid4().hex[:8])


def exists(directory: Path) -> bool:
    return (directory / NAME).exists()


def set_aside(directory: Path) -> Path:
    """Rename a damaged replica to a hidden name, replacing an earlier one. Raises OSError."""
    aside = directory.with_name(f".{directory.name}.damaged")
    if not directory.exists():
        return aside
    shutil.rmtree(aside, ignore_errors=True)
    return directory.rename(aside)


def read(directory: Path) -> Replica:
    """Return a replica's identity. Raises CorruptError when it is missing or damaged, OSError."""
    path = directory / NAME
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_BYTES))
        return Replica(str(document["id"]), str(document["lineage"]), int(document["checkpoint"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"cannot read the id of the replica in {path}: {error}") from error


def write(directory: Path, replica: Replica, disk: Disk) -> None:
    """Write the replica file atomically and durably. Raises OSError."""
    path = directory / NAME
    unfinished = path.with_suffix(".unfinished")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        disk.write(fd, [json.dumps(asdict(replica)).encode()], 0)
        disk.sync(fd)
    finally:
        os.close(fd)
    unfinished.rename(path)
    disk.sync_directory(directory)
