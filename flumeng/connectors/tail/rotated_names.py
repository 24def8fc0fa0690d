"""Finds renamed logs by inode. Recognises names of a log's generations (renamed files) and copies
(made before a truncation)."""

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
"""Errors of inaccessible folders, which are ignored; a lack of descriptors is raised."""


class Sight(NamedTuple):
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
    """Yield possible names of the original: ``app.log`` for ``app.log.1``, ``app.log-20261121``,
    ``app-20261121.log`` and ``app20261121.log``; ``current`` for files of svlogd and multilog."""
    for index, character in enumerate(name):
        if index and not character.isalnum():
            yield name[:index]
    for pattern in (_NUMBERED, _DATED):
        if (numbered := pattern.fullmatch(name)) is not None:
            yield "".join(numbered.groups())
    if _TAI64N.fullmatch(name):
        yield "current"


def is_numbered(name: str, original: str) -> bool:
    """Return whether ``name`` is ``original`` plus a number or time at the end, or with six or more
    digits before the extension. Not ``app-2.log``: it may be another program's log."""
    if name.startswith(original):
        return _NUMBER.fullmatch(name, len(original)) is not None
    dated = _DATED.fullmatch(name)
    return dated is not None and "".join(dated.groups()) == original


def has_shape(name: str, generation: str) -> bool:
    """Return whether names differ only in decimal numbers, or hexadecimal ones from 8 digits on."""
    return _COUNTED.sub("#", name) == _COUNTED.sub("#", generation)


def copies_beside(cursor: FilePosition, *, within: bool = False) -> dict[FileKey, Sight]:
    """Return files in the folders of ``cursor`` with names that its rotated copies may have; with
    ``within`` also in their subfolders."""
    names = {base_name(path) for path in cursor.paths}
    return regular_files(
        path
        for folder in (*_folders(cursor), *(folders_within(cursor) if within else ()))
        for path in paths_in(folder)
        if not names.isdisjoint(originals(base_name(path)))
    )


def paths_in(folder: str) -> Sequence[str]:
    """Return the paths in a folder, none if it is inaccessible. OSError if out of descriptors."""
    with contextlib.suppress(*_CLOSED), os.scandir(folder) as entries:
        return [entry.path for entry in entries]
    return ()


def base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _folders(cursor: FilePosition) -> Iterable[str]:
    return dict.fromkeys((str(Path(cursor.path).parent), cursor.folder))


def folders_within(cursor: FilePosition) -> Sequence[str]:
    """Return subfolders that rotation may use (logrotate's ``olddir``); none if too many."""
    folders: list[str] = []
    for folder in _folders(cursor):
        with contextlib.suppress(*_CLOSED), os.scandir(folder) as entries:
            folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return folders if len(folders) <= MAX_FOLDERS_WITHIN else ()


class Folders:
    """Finds the present paths of files by inode. Valid for one scan."""

    def __init__(self) -> None:
        self._files: dict[str, dict[FileKey, Sight]] = {}
        self._inodes: dict[str, dict[int, str]] = {}

    def find(self, key: FileKey, cursor: FilePosition) -> Sight | None:
        """Search the file's folder, the folder's former link target, and their subfolders."""
        for folder in _folders(cursor):
            if key in self._in(folder):
                return self._in(folder)[key]
        within = [name for folder in folders_within(cursor) if (name := self._named(folder, key))]
        return regular_files(within).get(key)

    def _named(self, folder: str, key: FileKey) -> str | None:
        """Return the path of an inode in ``folder``, without opening files."""
        if folder not in self._inodes:
            self._inodes[folder] = {}
            with contextlib.suppress(*_CLOSED), os.scandir(folder) as entries:
                self._inodes[folder] = {entry.inode(): entry.path for entry in entries}
        return self._inodes[folder].get(key.inode)

    def _in(self, folder: str) -> dict[FileKey, Sight]:
        if folder not in self._files:
            self._files[folder] = regular_files(paths_in(folder))
        return self._files[folder]


def regular_files(paths: Iterable[str]) -> dict[FileKey, Sight]:
    """Return existing regular files, each under its first name."""
    files: dict[FileKey, Sight] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = Path(path).stat()
            if stat.S_ISREG(status.st_mode):
                sight = Sight(path, status.st_size, status.st_mtime_ns)
                files.setdefault(FileKey.of(status), sight)
    return files
