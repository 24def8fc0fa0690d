"""Where a known file has gone, and how generations and copies of it are called."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flumeng.connectors.tail.file_position import FileKey, FilePosition

MAX_FOLDERS_WITHIN = 200
_CLOSED = FileNotFoundError, NotADirectoryError, PermissionError
"""A folder that cannot be looked into; without a descriptor it is not known what is there."""


class Sight(NamedTuple):
    """A file as it was seen in a folder."""

    path: str
    size: int
    modified_ns: int


_BETWEEN = "[-._:,+@ TZ]"  # the digits of a time: 2026-11-20T09:11:12.000+01:00
_NUMBER = re.compile(rf"[-._:,+@ ]*[0-9](?:[0-9]|{_BETWEEN})*")
_DATED = re.compile(rf"(.+?)[-._@ ]*(?:[0-9]{_BETWEEN}*){{6,}}(\.[a-zA-Z]\w*)")
_NUMBERED = re.compile(rf"(.+?)[-._@ ][0-9](?:[0-9]|{_BETWEEN})*(\.[a-zA-Z]\w*)")
_TAI64N = re.compile(r"@[0-9a-f]{24}\.[su]")
_COUNTED = re.compile(r"[0-9a-f]{8,}|[0-9]+")


def originals(name: str) -> Iterator[str]:
    """Of what files this may be the name of a copy: ``app.log`` of ``app.log.1``, of
    ``app.log-20261121``, ``app-20261121.log`` and ``app20261121.log``; ``current`` of what svlogd
    and multilog make."""
    for index, character in enumerate(name):
        if index and not character.isalnum():
            yield name[:index]
    for pattern in (_NUMBERED, _DATED):
        if (numbered := pattern.fullmatch(name)) is not None:
            yield "".join(numbered.groups())
    if _TAI64N.fullmatch(name):
        yield "current"


def is_numbered(name: str, original: str) -> bool:
    """Whether ``name`` tells it from ``original`` by a number after it, or by a date before its
    extension: ``app-2.log`` may be the log of another program."""
    if name.startswith(original):
        return _NUMBER.fullmatch(name, len(original)) is not None
    dated = _DATED.fullmatch(name)
    return dated is not None and "".join(dated.groups()) == original


def has_shape(name: str, generation: str) -> bool:
    """Whether the two names differ in their numbers alone."""
    return _COUNTED.sub("#", name) == _COUNTED.sub("#", generation)


def copies_beside(cursor: FilePosition, *, within: bool = False) -> dict[FileKey, Sight]:
    """Candidates for copies of a rotated file, by their names, in the folders where it was found.
    With ``within`` also all files of the folders in these; the content decides there."""
    names = {base_name(path) for path in cursor.paths}
    return regular_files(
        path
        for folder in (*_folders(cursor), *(folders_within(cursor) if within else ()))
        for path in Path(folder).glob("*")
        if not names.isdisjoint(originals(path.name))
    )


def successor(cursor: FilePosition) -> dict[FileKey, Sight]:
    """The file that now lies at the former target of a link, which may point elsewhere by now."""
    return regular_files([cursor.real_path])


def base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _folders(cursor: FilePosition) -> Iterable[str]:
    return dict.fromkeys((str(Path(cursor.path).parent), cursor.folder))


def folders_within(cursor: FilePosition) -> Sequence[str]:
    """The folders in those where a file was found, into which a rotation may move it (``olddir`` of
    logrotate); none when there are too many."""
    found: list[str] = []
    for folder in _folders(cursor):
        with contextlib.suppress(*_CLOSED), os.scandir(folder) as entries:
            found += [one.path for one in entries if one.is_dir(follow_symlinks=False)]
    return found if len(found) <= MAX_FOLDERS_WITHIN else ()


class Folders:
    """Where files are now, by what they are. Good for one moment: make a new one for the next."""

    def __init__(self) -> None:
        self._files: dict[str, dict[FileKey, Sight]] = {}
        self._inodes: dict[str, dict[int, str]] = {}

    def find(self, key: FileKey, cursor: FilePosition) -> Sight | None:
        """How a file is seen now where it was found: in the folder of that name, in what that
        folder was then, and in the folders within."""
        for folder in _folders(cursor):
            if key in self._in(folder):
                return self._in(folder)[key]
        within = [name for folder in folders_within(cursor) if (name := self._named(folder, key))]
        return regular_files(within).get(key)

    def _named(self, folder: str, key: FileKey) -> str | None:
        """The path with the file's inode in ``folder``. No file is opened for that."""
        if folder not in self._inodes:
            self._inodes[folder] = {}
            with contextlib.suppress(*_CLOSED), os.scandir(folder) as entries:
                self._inodes[folder] = {one.inode(): one.path for one in entries}
        return self._inodes[folder].get(key.inode)

    def _in(self, folder: str) -> dict[FileKey, Sight]:
        if folder not in self._files:
            self._files[folder] = regular_files(Path(folder).glob("*"))
        return self._files[folder]


def regular_files(paths: Iterable[str | Path]) -> dict[FileKey, Sight]:
    """Those that can be seen now, each under the first of its names."""
    found: dict[FileKey, Sight] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = Path(path).stat()
            if stat.S_ISREG(status.st_mode):
                sight = Sight(str(path), status.st_size, status.st_mtime_ns)
                found.setdefault(FileKey.of(status), sight)
    return found
