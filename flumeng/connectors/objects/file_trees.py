"""Directory trees of this host, and of stores listed through pyarrow: GCS, Azure, HDFS."""

from __future__ import annotations

import errno
import os
import re
import stat

from pyarrow import fs

from flumeng.connectors.objects.pages import PAGE, Listed, Page, Request
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.file_store import FileStore
from flumeng.platform.remote_store import OBJECT_STORES

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_DENIED = (errno.EACCES, errno.EPERM)


class LocalTree:
    """Local directories; the names of a directory are in memory while it is listed."""

    lasting = True

    def __init__(self, head: str = "") -> None:
        self._head = head

    def page(self, request: Request) -> Page:
        entries = request.token if request.token is not None else self._entries(request)
        page = Page()
        for _ in range(min(PAGE, len(entries))):
            name, is_directory, entry = entries.pop()
            if is_directory:
                below = request.scope.below(name[:-1], linked=entry.is_symlink())
                if below is not None:
                    page.entries.append(request.into(below))
                continue
            try:
                status = entry.stat()
            except OSError as error:
                if error.errno in _NOT_THERE:
                    continue
                raise _explained(error, entry.path) from error
            if not stat.S_ISREG(status.st_mode):
                continue
            if _SURROGATE.search(entry.path):
                page.unnamed.append(ascii(entry.path))
                continue
            page.entries.append(
                Listed(self._head + entry.path, status.st_size, status.st_mtime_ns // 1000)
            )
        if entries:
            page.entries.append(request.going_on(entries))
        return page

    def _entries(self, request: Request) -> list[tuple[str, bool, os.DirEntry[str]]]:
        """Return possibly matching names in reverse order; directory names end in a slash."""
        scope = request.scope
        entries = []
        try:
            with os.scandir(scope.directory) as scanned:
                for entry in scanned:
                    if _is_directory(entry):
                        if request.wants_below(f"{entry.path}/"):
                            entries.append((f"{entry.name}/", True, entry))
                    elif scope.takes(entry.name) and request.wants(entry.path):
                        entries.append((entry.name, False, entry))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise
            raise _explained(error, scope.directory) from error
        entries.sort(key=lambda entry: entry[0], reverse=True)
        return entries


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise


def _explained(error: OSError, path: str) -> Exception:
    if error.errno in _NOT_THERE:
        return FileNotFoundError(path)
    text = f"{path}: {error.strerror}"
    if error.errno in _DENIED:
        return UserError(f"{text}: allow the node's user to read this path, or correct the glob")
    return UnavailableError(text)


class ArrowTree:
    """Stores through pyarrow: whole directories, about 300 bytes an object in memory, no ETags."""

    def __init__(self, store: FileStore, root: str, head: str, tail: str) -> None:
        self._store = store
        self._root = root
        self._head = head
        self._tail = tail
        self.lasting = store.files.type_name not in OBJECT_STORES

    def page(self, request: Request) -> Page:
        scope = request.scope
        page = Page()
        for name, info in self._infos(request):
            path = request.within + name
            entry: Listed | Request
            if info.type == fs.FileType.Directory:
                below = scope.below(info.base_name)
                if below is None or not request.wants_below(path):
                    continue
                entry = request.into(below)
            elif scope.takes(name) and request.wants(path):
                location = f"{self._head}{path}{self._tail}"
                entry = Listed(location, info.size or 0, (info.mtime_ns or 0) // 1000)
            else:
                continue
            if "?" in name:
                page.unnamed.append(ascii(self._head + path))
            else:
                page.entries.append(entry)
        return page

    def _infos(self, request: Request) -> list[tuple[str, fs.FileInfo]]:
        directory = f"{self._root}/{request.scope.directory}"
        selector = fs.FileSelector(directory if request.scope.directory else self._root or "/")
        try:
            infos = self._store.files.get_file_info(selector)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise self._store.explained(error) from error
        slash = {fs.FileType.Directory: "/"}
        named = [
            (info.base_name + slash.get(info.type, ""), info)
            for info in infos
            if info.type != fs.FileType.NotFound
        ]
        return sorted(named, key=lambda entry: entry[0])
