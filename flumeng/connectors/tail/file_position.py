"""Positions of files in the journal's state. A file is found by device and inode, and recognised by
its first bytes and those before the offset: volumes are remounted, inodes reused, files copied."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

from flumeng.platform.errors import CorruptError

MARK_BYTES = 256
_PREFIX = "tail:"
_REUSED_PREFIX = "tail-reused:"


class FileKey(NamedTuple):
    """A file's device and inode. ``cut`` above 0: former content, truncated or replaced."""

    device: int
    inode: int
    cut: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> FileKey:
        return cls(status.st_dev, status.st_ino)

    @property
    def identity(self) -> str:
        return f"{self.device}:{self.inode}"

    def __str__(self) -> str:
        return f"{self.identity}:{self.cut}" if self.cut else self.identity


class Mark(NamedTuple):
    """Length and digest of up to 256 bytes of a file."""

    length: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> Mark:
        return cls(len(data), hashlib.blake2b(data, digest_size=8).hexdigest())


NO_MARK = Mark.of(b"")


class MarkedOffset(NamedTuple):
    """An offset, and the mark of the bytes before it."""

    offset: int
    last: Mark


@dataclass(frozen=True)
class FilePosition:
    """Position in a file: bytes below ``offset`` are journaled or skipped.

    ``path``: the path at discovery. ``folder`` and ``file_name``: the same with symlinks resolved,
    where a log behind a link is rotated; positions of older versions lack ``file_name``. ``head``:
    mark of the first bytes; ``last``: mark of the bytes before the offset. ``skipping``: the line's
    rest is dropped. ``unterminated``: the previous line was taken without its newline. ``size`` and
    ``modified_ns``: as last seen. ``identity``: the original key of a file that continues under
    another key, as a copy or after a remount. ``suspect``: unread content may have been truncated.
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
        """The path that the globs match and, if different, the path with links resolved."""
        real_path = self.real_path
        return (self.path,) if real_path == self.path else (self.path, real_path)

    def at_start(self, *, size: int = 0, modified_ns: int = 0) -> FilePosition:
        """Return the start of another file with the same paths."""
        return FilePosition(
            self.path, self.folder, size=size, modified_ns=modified_ns, file_name=self.file_name
        )

    @property
    def beginning(self) -> MarkedOffset:
        return MarkedOffset(self.head.length, self.head)

    @property
    def marked_offset(self) -> MarkedOffset:
        return MarkedOffset(self.offset, self.last)

    @classmethod
    def new(cls, path: str, *, size: int = 0, modified_ns: int = 0) -> FilePosition:
        folder, _, name = os.path.realpath(path).rpartition("/")
        return cls(path, folder, size=size, modified_ns=modified_ns, file_name=name)

    def to_state(self) -> dict[str, object]:
        return {**vars(self), "head": list(self.head), "last": list(self.last)}

    @classmethod
    def from_state(cls, value: Mapping[str, Any]) -> FilePosition:
        """Restore a position; older versions stored only the size of copies, as ``end``."""
        later = {"suspect": False, "file_name": "", "unterminated": False}
        stored = {"size": value.get("end", 0), **later, **value}
        given = {field.name: stored[field.name] for field in fields(cls)}
        return cls(**(given | {name: Mark(*given[name]) for name in ("head", "last")}))


def state_key(key: FileKey) -> str:
    return f"{_PREFIX}{key}"


def reused_key(key: FileKey) -> str:
    """Return the state key of a file whose inode the journal still assigns to an older file."""
    return f"{_REUSED_PREFIX}{key}"


def cursors(state: Mapping[str, object]) -> dict[FileKey, FilePosition]:
    return _positions(state, _PREFIX)


def reused(state: Mapping[str, object]) -> dict[FileKey, FilePosition]:
    """Return the positions of files that have the inode of an older file."""
    return _positions(state, _REUSED_PREFIX)


def _positions(state: Mapping[str, object], prefix: str) -> dict[FileKey, FilePosition]:
    positions = {}
    for name, value in state.items():
        if name.startswith(prefix):
            try:
                key = FileKey(*map(int, name.removeprefix(prefix).split(":")))
                positions[key] = FilePosition.from_state(cast("Mapping[str, Any]", value))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise CorruptError(f"damaged position of a tailed file: {name}") from error
    return positions
