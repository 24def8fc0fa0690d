"""How far a file is journaled, in the form in which it lies in the journal's state.

A file is known by device and inode, since names change at rotation. Inode numbers are used again,
and files are written anew or compressed, so a cursor also knows how its file begins and what stands
right before its offset.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

MARK_BYTES = 256
_PREFIX = "tail:"


class FileKey(NamedTuple):
    """What names a file as long as it exists."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileKey:
        return cls(status.st_dev, status.st_ino)

    def __str__(self) -> str:
        return f"{self.device}:{self.inode}"


class Mark(NamedTuple):
    """Some bytes of a file, at most 256: how many they are, and their digest."""

    length: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> Mark:
        return cls(len(data), hashlib.blake2b(data, digest_size=8).hexdigest())


NO_MARK = Mark.of(b"")


@dataclass(frozen=True)
class Cursor:
    """Everything below ``offset`` is journaled or, in an over-long line, skipped.

    ``path`` is the name by which the file was found first, ``folder`` the one in which it lay then,
    with symlinks resolved. ``head`` are its first bytes, ``last`` those before the offset.
    ``skipping``: the offset lies within a line whose rest is not wanted.
    """

    path: str
    folder: str
    offset: int = 0
    head: Mark = NO_MARK
    last: Mark = NO_MARK
    skipping: bool = False

    @classmethod
    def new(cls, path: str) -> Cursor:
        return cls(path, str(Path(os.path.realpath(path)).parent))

    def to_state(self) -> dict[str, object]:
        return {
            "path": self.path,
            "offset": self.offset,
            "folder": self.folder,
            "head": list(self.head),
            "last": list(self.last),
            "skipping": self.skipping,
        }

    @classmethod
    def from_state(cls, value: Mapping[str, object]) -> Cursor:
        return cls(
            cast("str", value["path"]),
            cast("str", value["folder"]),
            cast("int", value["offset"]),
            Mark(*cast("tuple[int, str]", value["head"])),
            Mark(*cast("tuple[int, str]", value["last"])),
            cast("bool", value["skipping"]),
        )


def state_key(key: FileKey) -> str:
    return f"{_PREFIX}{key}"


def cursors(state: Mapping[str, object]) -> dict[FileKey, Cursor]:
    """The cursors in a journal's source state."""
    found = {}
    for name, value in state.items():
        if name.startswith(_PREFIX):
            device, _, inode = name.removeprefix(_PREFIX).partition(":")
            cursor = Cursor.from_state(cast("Mapping[str, object]", value))
            found[FileKey(int(device), int(inode))] = cursor
    return found
