"""Durable directories, local or in a file system of pyarrow. A location is an absolute path, or a
URI with parameters in its query. Local entries are durable once synced. Renames may be repeated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyarrow import fs

from flumeng.platform import secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.options.patterns import split_query
from flumeng.platform.remote_store import Resolve, is_marker, open_remote

LASTING = 10_000
"""Maximum number of directories remembered as synced."""


class FileStore(Protocol):
    """Durable directories. Paths have no scheme, see ``open_store``. Remote stores raise UserError
    if a person has to act (no such bucket, no access), UnavailableError if a retry may help."""

    @property
    def files(self) -> fs.FileSystem:
        """The file system of pyarrow, for reading."""

    def make_directory(self, path: str) -> None:
        """Create a directory durably, with its parents, unless it exists."""

    def open_output(self, path: str) -> pa.NativeFile:
        """Open a new file, whose content is durable after ``close`` and then ``sync``."""

    def sync(self, path: str) -> None:
        """Make a closed file's content, or a directory's entries, durable."""

    def rename(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Carry out all moves durably, markers (targets with names like ``_x``) last; return those
        that lack source and target. If only the target exists, the move was done before."""

    def exists(self, path: str) -> bool: ...

    def directories(self, path: str) -> list[str]:
        """Return the names of the directories in ``path``; none when it is missing."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with its content, if it exists."""

    def explained(self, error: OSError) -> Exception:
        """Return the error to raise for an error of a file from ``open_output``."""


@contextmanager
def store_errors(store: FileStore, name: str) -> Iterator[None]:
    """Turn an OSError of the store's directory ``name`` into UserError or UnavailableError."""
    try:
        yield
    except PermissionError as error:
        why = f"{name}: {error}: allow the node's user to read and write there"
        raise UserError(why) from error
    except OSError as error:
        explained = store.explained(error)
        if isinstance(explained, OSError):
            raise UnavailableError(f"{name}: {error}") from error
        raise explained from error


def exists(uri: str) -> bool:
    store, path = open_store(uri)
    return store.exists(path)


def open_store(uri: str, resolve: Resolve = secrets.resolve) -> tuple[FileStore, str]:
    """Return the file store of ``uri`` and the path in it; ``resolve`` looks up secrets in the
    query. Raises UserError, such as for an unknown scheme, and UnavailableError."""
    if uri.startswith("/"):
        return LOCAL, uri
    if uri.startswith("file://"):
        return LOCAL, uri.removeprefix("file://")
    return open_remote(uri, resolve)


def open_files(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of pyarrow for reading ``uri``, and the path in it."""
    store, path = open_store(uri)
    return store.files, path


def below(uri: str, *names: str) -> str:
    directory, query = split_query(uri)
    return "/".join((directory.rstrip("/"), *names)) + query


class LocalFileStore:
    """The local disk. New directories and renames are durable when the call returns, content after
    ``sync``. ``remove_tree`` ignores errors."""

    def __init__(self) -> None:
        self.files = fs.LocalFileSystem()
        self._lasting: dict[Path, tuple[int, int]] = {}
        """Device and inode of each directory that this process has synced with all its parents."""

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
        """Sync directories that were not synced before, with all their parents."""
        fresh = []
        for directory in directories:
            status = directory.stat()
            inode = (status.st_dev, status.st_ino)
            if self._lasting.get(directory) != inode:
                fresh.append((directory, inode))
        if fresh:
            new = {above for made, _ in fresh for above in (made, *made.parents)}
            for directory in sorted(new):
                with suppress(PermissionError):
                    _fsync(str(directory))
            if len(self._lasting) > LASTING:
                self._lasting = {}
            self._lasting.update(fresh)


LOCAL = LocalFileStore()


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
