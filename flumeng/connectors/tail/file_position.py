"""How far a file is journaled, in the form in which it lies in the journal's state.

A file is found by device and inode, since names change at rotation, and known by its content, since
those change too: a volume is attached anew, inode numbers are used again, files are written anew,
copied or compressed. So a cursor knows how its file begins and what stands right before its offset.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from flumeng.platform.errors import CorruptError

MARK_BYTES = 256
_PREFIX = "tail:"
_REUSED_PREFIX = "tail-reused:"


class FileKey(NamedTuple):
    """By what a file is found.

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


@dataclass(frozen=True)
class FilePosition:
    """Everything below ``offset`` is journaled or, in an over-long line, skipped.

    ``path`` is the name by which the file was found first. ``folder`` and ``file_name`` are where
    it lay then, with symlinks resolved: a log behind a link is rotated under that name. Positions
    of older versions have no ``file_name``. ``head`` are its first bytes, ``last`` those before the
    offset.
    ``skipping``: the offset lies within a line whose rest is not wanted. ``unterminated``: the
    line before the offset was taken without its newline. ``size`` and
    ``modified_ns`` are those of the last look. ``identity`` is that of the file that this one goes
    on for, if it had another key: of a copy, or on a device that was attached anew.
    ``suspect``: of what was in a file before it was cut there may have been more than was seen.
    """

    path: str
    folder: str
    offset: int = 0
    head: Mark = NO_MARK
    last: Mark = NO_MARK
    skipping: bool = False
    size: int = 0
    modified_ns: int = 0
    identity: str = ""
    suspect: bool = False
    file_name: str = ""
    unterminated: bool = False

    @property
    def real_path(self) -> str:
        return f"{self.folder}/{self.file_name or self.path.rpartition('/')[2]}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Under which it was found: the path that the globs mean, and the one behind links."""
        real_path = self.real_path
        return (self.path,) if real_path == self.path else (self.path, real_path)

    def anew(self, *, size: int = 0, modified_ns: int = 0) -> FilePosition:
        """The beginning of another file that has the paths of this one."""
        return FilePosition(
            self.path,
            self.folder,
            size=size,
            modified_ns=modified_ns,
            file_name=self.file_name,
        )

    @property
    def beginning(self) -> Place:
        return Place(self.head.length, self.head)

    @property
    def place(self) -> Place:
        return Place(self.offset, self.last)

    @classmethod
    def new(cls, path: str, *, size: int = 0, modified_ns: int = 0) -> FilePosition:
        folder, _, name = os.path.realpath(path).rpartition("/")
        return cls(path, folder, size=size, modified_ns=modified_ns, file_name=name)

    def to_state(self) -> dict[str, object]:
        return {
            "path": self.path,
            "offset": self.offset,
            "folder": self.folder,
            "head": list(self.head),
            "last": list(self.last),
            "skipping": self.skipping,
            "size": self.size,
            "modified_ns": self.modified_ns,
            "identity": self.identity,
            "suspect": self.suspect,
            "file_name": self.file_name,
            "unterminated": self.unterminated,
        }

    @classmethod
    def from_state(cls, value: Mapping[str, object]) -> FilePosition:
        """Older versions knew the size of copies only, as their ``end``."""
        return cls(
            cast("str", value["path"]),
            cast("str", value["folder"]),
            cast("int", value["offset"]),
            Mark(*cast("tuple[int, str]", value["head"])),
            Mark(*cast("tuple[int, str]", value["last"])),
            cast("bool", value["skipping"]),
            cast("int", value["size"] if "size" in value else value.get("end", 0)),
            cast("int", value["modified_ns"]),
            cast("str", value["identity"]),
            cast("bool", value.get("suspect", False)),
            cast("str", value.get("file_name", "")),
            cast("bool", value.get("unterminated", False)),
        )


def state_key(key: FileKey) -> str:
    return f"{_PREFIX}{key}"


def reused_key(key: FileKey) -> str:
    """Under it a file is noted whose inode the journal knows as that of an older one."""
    return f"{_REUSED_PREFIX}{key}"


def cursors(state: Mapping[str, object]) -> dict[FileKey, FilePosition]:
    """The cursors in a journal's source state."""
    return _positions(state, _PREFIX)


def reused(state: Mapping[str, object]) -> dict[FileKey, FilePosition]:
    """The files in the noted source state that have the inode of an older one."""
    return _positions(state, _REUSED_PREFIX)


def _positions(state: Mapping[str, object], prefix: str) -> dict[FileKey, FilePosition]:
    found = {}
    for name, value in state.items():
        if name.startswith(prefix):
            try:
                key = FileKey(*map(int, name.removeprefix(prefix).split(":")))
                found[key] = FilePosition.from_state(cast("Mapping[str, object]", value))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise CorruptError(f"what is kept of a file makes no sense: {name}") from error
    return found
