"""How far a file is journaled, in the form in which it lies in the journal's state.

A file is known by device and inode, since names change at rotation. Inode numbers are used again,
and files are written anew, copied or compressed, so a cursor also knows how its file begins and
what stands right before its offset.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

MARK_BYTES = 256
_PREFIX = "tail:"


class FileKey(NamedTuple):
    """What names a file as long as it exists.

    What was in a file before it was cut has the key of that file and a ``cut`` above 0.
    """

    device: int
    inode: int
    cut: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> FileKey:
        return cls(status.st_dev, status.st_ino)

    @property
    def identity(self) -> str:
        """How its lines name their file."""
        return f"{self.device}:{self.inode}"

    def __str__(self) -> str:
        return f"{self.identity}:{self.cut}" if self.cut else self.identity


class Mark(NamedTuple):
    """Some bytes of a file, at most 256: how many they are, and their digest."""

    length: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> Mark:
        return cls(len(data), hashlib.blake2b(data, digest_size=8).hexdigest())


NO_MARK = Mark.of(b"")


class Place(NamedTuple):
    """An offset, and the mark of what stands right before it."""

    offset: int
    last: Mark


_BEGINNING = Place(0, NO_MARK)


@dataclass(frozen=True)
class FilePosition:
    """Everything below ``offset`` is journaled or, in an over-long line, skipped.

    ``path`` is the name by which the file was found first, ``folder`` the one in which it lay then,
    with symlinks resolved. ``head`` are its first bytes, ``last`` those before the offset.
    ``skipping``: the offset lies within a line whose rest is not wanted. ``earlier`` are two places
    where it stood some seconds ago; while that is within the first 256 bytes, ``start`` are these.
    ``modified_ns`` is when the file was changed last, as of the last look.

    Of a copy: ``identity`` is that of the file that it was made of, ``end`` its size.
    """

    path: str
    folder: str
    offset: int = 0
    head: Mark = NO_MARK
    last: Mark = NO_MARK
    skipping: bool = False
    earlier: tuple[Place, Place] = (_BEGINNING, _BEGINNING)
    start: bytes = b""
    modified_ns: int = 0
    identity: str = ""
    end: int = 0

    @property
    def is_young(self) -> bool:
        return self.earlier[0].offset < MARK_BYTES

    @property
    def is_emptied(self) -> bool:
        """Whether it is, in a state, that of a file that was seen cut and not read since."""
        return not self.offset and not self.end and self.modified_ns > 0

    @property
    def beginning(self) -> Place:
        return Place(self.head.length, self.head)

    @property
    def place(self) -> Place:
        return Place(self.offset, self.last)

    @classmethod
    def new(cls, path: str) -> FilePosition:
        return cls(path, str(Path(os.path.realpath(path)).parent))

    def to_state(self) -> dict[str, object]:
        return {
            "path": self.path,
            "offset": self.offset,
            "folder": self.folder,
            "head": list(self.head),
            "last": list(self.last),
            "skipping": self.skipping,
            "start": self.start.decode("latin-1") if self.is_young else "",
            "earlier": [[offset, *last] for offset, last in self.earlier],
            "modified_ns": self.modified_ns,
            "identity": self.identity,
            "end": self.end,
        }

    @classmethod
    def from_state(cls, value: Mapping[str, object]) -> FilePosition:
        return cls(
            cast("str", value["path"]),
            cast("str", value["folder"]),
            cast("int", value["offset"]),
            Mark(*cast("tuple[int, str]", value["head"])),
            Mark(*cast("tuple[int, str]", value["last"])),
            cast("bool", value["skipping"]),
            _places(cast("list[list[Any]]", value["earlier"])),
            cast("str", value["start"]).encode("latin-1"),
            cast("int", value["modified_ns"]),
            cast("str", value["identity"]),
            cast("int", value["end"]),
        )


def _places(value: list[list[Any]]) -> tuple[Place, Place]:
    first, second = (Place(offset, Mark(length, digest)) for offset, length, digest in value)
    return first, second


def state_key(key: FileKey) -> str:
    return f"{_PREFIX}{key}"


def cursors(state: Mapping[str, object]) -> dict[FileKey, FilePosition]:
    """The cursors in a journal's source state."""
    found = {}
    for name, value in state.items():
        if name.startswith(_PREFIX):
            key = FileKey(*map(int, name.removeprefix(_PREFIX).split(":")))
            found[key] = FilePosition.from_state(cast("Mapping[str, object]", value))
    return found
