"""How far a file is journaled, in the form in which it lies in the journal's state.

A file is known by device and inode, since names change at rotation. Inode numbers are used again,
so a cursor also knows how its file begins.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

HEAD_BYTES = 256
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


class Head(NamedTuple):
    """The first bytes of a file, as many as were journaled and at most 256."""

    length: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> Head:
        return cls(len(data), hashlib.blake2b(data, digest_size=8).hexdigest())


NO_HEAD = Head.of(b"")


@dataclass(frozen=True)
class Cursor:
    """Everything below ``offset`` is journaled or, in an over-long line, skipped.

    ``path`` is the name by which the file was found first. ``skipping``: the offset lies within a
    line whose rest is not wanted.
    """

    path: str
    offset: int = 0
    head: Head = NO_HEAD
    skipping: bool = False

    def to_state(self) -> dict[str, object]:
        return {
            "path": self.path,
            "offset": self.offset,
            "head": list(self.head),
            "skipping": self.skipping,
        }

    @classmethod
    def from_state(cls, value: Mapping[str, object]) -> Cursor:
        length, digest = cast("tuple[int, str]", value["head"])
        return cls(
            cast("str", value["path"]),
            cast("int", value["offset"]),
            Head(length, digest),
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
