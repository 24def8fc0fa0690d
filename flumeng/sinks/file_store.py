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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyarrow import fs

from flumeng.errors import UserError
from flumeng.spec.patterns import split_query

S3_SCHEMES = ("s3a", "s3n")
WITHOUT_DIRECTORIES = ("s3", "gcs", "abfs")
RENAMES_AT_ONCE = 8
LASTING = 10_000
"""So many directories are remembered at most."""


class FileStore(Protocol):
    """Paths are those of the file system, without scheme; ``open_store`` splits a URI."""

    def make_directory(self, path: str) -> None:
        """Create it, with its parents, for good. Nothing happens when it is there."""

    def open_output(self, path: str) -> pa.NativeFile:
        """A new file; what is written counts after ``close`` and then ``sync``."""

    def sync(self, path: str) -> None:
        """Make a closed file's content, or a directory's entries, durable."""

    def rename(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Carry out all moves, for good; gives those whose source and target are both missing.

        A move whose source is gone and whose target is there was done before.
        """

    def exists(self, path: str) -> bool: ...

    def directories(self, path: str) -> list[str]:
        """Names of the directories in ``path``; none when there is no such directory."""

    def remove_tree(self, path: str) -> None:
        """Delete a directory with all in it; nothing happens when it is not there."""


def exists(uri: str) -> bool:
    """Whether there is such a file or directory, as this host sees it."""
    store, path = open_store(uri)
    return store.exists(path)


def open_store(uri: str) -> tuple[FileStore, str]:
    """The file store of ``uri``, and the path there. UserError for a scheme nobody serves."""
    if uri.startswith("/"):
        return LOCAL, uri
    place, query = split_query(uri)
    scheme, _, rest = place.partition("://")
    if scheme == "file":
        return LOCAL, rest
    host, slash, path = rest.partition("/")
    lake, root = _remote(f"{'s3' if scheme in S3_SCHEMES else scheme}://{host}{query}")
    return lake, (root + slash + path).rstrip("/")


def below(uri: str, *names: str) -> str:
    """The location ``names`` below that one."""
    place, query = split_query(uri)
    return "/".join((place.rstrip("/"), *names)) + query


@lru_cache(maxsize=32)
def _remote(base: str) -> tuple[FileStore, str]:
    try:
        filesystem, root = fs.FileSystem.from_uri(base)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{base}: {error}") from error
    return RemoteFileStore(filesystem), root


class LocalFileStore:
    """The local disk. What it creates is durable when the call returns, files after ``sync``."""

    def __init__(self) -> None:
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
        for source, target in moves:
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


class RemoteFileStore:
    """Any file system of pyarrow's. On object stores a rename is a copy and a delete."""

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self._files = filesystem

    def make_directory(self, path: str) -> None:
        if self._files.type_name not in WITHOUT_DIRECTORIES:
            self._files.create_dir(path, recursive=True)

    def open_output(self, path: str) -> pa.NativeFile:
        return self._files.open_output_stream(path, compression=None)

    def sync(self, path: str) -> None:
        """Closing the file was enough."""

    def rename(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        for directory in sorted({target.rpartition("/")[0] for _, target in moves}):
            self.make_directory(directory)
        with ThreadPoolExecutor(RENAMES_AT_ONCE) as pool:
            done = list(pool.map(self._rename, moves))
        return [move for move, there in zip(moves, done, strict=True) if not there]

    def exists(self, path: str) -> bool:
        (info,) = self._files.get_file_info([path])
        return bool(info.type != fs.FileType.NotFound)

    def directories(self, path: str) -> list[str]:
        found = self._files.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_dir(path)

    def _rename(self, move: tuple[str, str]) -> bool:
        source, target = move
        try:
            self._files.move(source, target)
        except FileNotFoundError:
            return self.exists(target)
        except OSError:
            if self.exists(source):
                raise
            return self.exists(target)
        return True


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
