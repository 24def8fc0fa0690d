"""Directories that keep files for good: of the local disk, or of any file system of pyarrow's.

A location is a URI or an absolute path; the query of a URI says how its store is reached, and is a
part of every location there. On a local disk nothing counts before it is synced, file
and directory; object stores answer only when they have it. Anyone may repeat a rename at any
time: it takes effect once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyarrow import fs

from flumeng.platform import secrets
from flumeng.platform.options.patterns import split_query
from flumeng.platform.remote_store import Resolve, is_marker, open_remote

LASTING = 10_000
"""So many directories are remembered at most."""


class FileStore(Protocol):
    """Paths are those of the file system, without scheme; ``open_store`` splits a URI.

    Behind a network UserError says that a person has to do something (no such bucket, access
    denied), UnavailableError that trying again may help.
    """

    @property
    def files(self) -> fs.FileSystem:
        """The file system of pyarrow's behind it, to read from."""

    def make_directory(self, path: str) -> None:
        """Create it, with its parents, for good. Nothing happens when it is there."""

    def open_output(self, path: str) -> pa.NativeFile:
        """A new file; what is written counts after ``close`` and then ``sync``."""

    def sync(self, path: str) -> None:
        """Make a closed file's content, or a directory's entries, durable."""

    def rename(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Carry out all moves, for good; gives those whose source and target are both missing.

        A move whose source is gone and whose target is there was done before. Markers, whose names
        begin with an underscore, come last.
        """

    def exists(self, path: str) -> bool: ...

    def directories(self, path: str) -> list[str]:
        """Names of the directories in ``path``; none when there is no such directory."""

    def remove_tree(self, path: str) -> None:
        """Delete a directory with all in it; nothing happens when it is not there."""

    def explained(self, error: OSError) -> Exception:
        """What is to be raised for an error of a file that ``open_output`` has given."""


def exists(uri: str) -> bool:
    """Whether there is such a file or directory, as this host sees it."""
    store, path = open_store(uri)
    return store.exists(path)


def open_store(uri: str, resolve: Resolve = secrets.resolve) -> tuple[FileStore, str]:
    """The file store of ``uri``, and the path there. UserError for a scheme nobody serves.

    ``resolve`` looks up the secrets to which the query refers; in an executor they were given.
    """
    if uri.startswith("/"):
        return LOCAL, uri
    if uri.startswith("file://"):
        return LOCAL, uri.removeprefix("file://")
    return open_remote(uri, resolve)


def open_files(uri: str, resolve: Resolve = secrets.resolve) -> tuple[fs.FileSystem, str]:
    """The file system of pyarrow's that has ``uri``, to read from, and the path there."""
    store, path = open_store(uri, resolve)
    return store.files, path


def below(uri: str, *names: str) -> str:
    """The location ``names`` below that one."""
    place, query = split_query(uri)
    return "/".join((place.rstrip("/"), *names)) + query


class LocalFileStore:
    """The local disk. What it creates is durable when the call returns, files after ``sync``."""

    def __init__(self) -> None:
        self.files = fs.LocalFileSystem()
        self._lasting: dict[Path, tuple[int, int]] = {}
        """Directories that this process has synced, with all above them, and what they were."""

    def make_directory(self, path: str) -> None:
        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        self._make_last([directory.parent])
        _fsync(str(directory.parent))

    def open_output(self, path: str) -> pa.NativeFile:
        return pa.OSFile(path, "wb")

    def sync(self, path: str) -> None:
        _fsync(path)

    def rename(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        directories = {Path(target).parent for _, target in moves}
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
        missing = []
        for source, target in sorted(moves, key=is_marker):
            try:
                Path(source).rename(target)
            except FileNotFoundError:
                if not Path(target).exists():
                    missing.append((source, target))
        self._make_last(directories)
        for directory in directories:
            _fsync(str(directory))
        return missing

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def directories(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        except FileNotFoundError:
            return []

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def explained(self, error: OSError) -> Exception:
        return error

    def _make_last(self, directories: Iterable[Path]) -> None:
        """Sync those that are not known to last: any of them, or of those above, may be new."""
        fresh = []
        for directory in directories:
            found = directory.stat()
            known = (found.st_dev, found.st_ino)
            if self._lasting.get(directory) != known:
                fresh.append((directory, known))
        if fresh:
            _sync_directories([directory for directory, _ in fresh])
            if len(self._lasting) > LASTING:
                self._lasting = {}
            self._lasting.update(fresh)


LOCAL = LocalFileStore()


def _sync_directories(directories: Iterable[Path]) -> None:
    """Sync each directory and all above it, since any of them may be new: made by us just now, or
    by someone who was killed before syncing it."""
    for directory in sorted({above for d in directories for above in (d, *d.parents)}):
        try:
            _fsync(str(directory))
        except PermissionError:
            continue


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
