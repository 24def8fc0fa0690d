"""Directories of this host, including mounts."""

from __future__ import annotations

import errno
import os
import stat

from flumeng.connectors.objects.pages import PAGE, Listed, Page, Request
from flumeng.platform.errors import UnavailableError, UserError

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_DENIED = (errno.EACCES, errno.EPERM)


class LocalTree:
    """The names of a directory are in memory while it is listed."""

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
                    page.found.append(request.into(below))
                continue
            try:
                status = entry.stat()
            except OSError as error:
                if error.errno in _NOT_THERE:
                    continue
                raise _explained(error, entry.path) from error
            if not stat.S_ISREG(status.st_mode):
                continue
            if not _is_text(entry.path):
                page.unnamed.append(ascii(entry.path))
                continue
            page.found.append(
                Listed(self._head + entry.path, status.st_size, status.st_mtime_ns // 1000)
            )
        if entries:
            page.found.append(request.going_on(entries))
        return page

    def _entries(self, request: Request) -> list[tuple[str, bool, os.DirEntry[str]]]:
        """Names that may match, the last one first; those of directories end in a slash."""
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
        entries.sort(key=lambda one: one[0], reverse=True)
        return entries


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explained(error: OSError, path: str) -> Exception:
    if error.errno in _NOT_THERE:
        return FileNotFoundError(path)
    said = f"{path}: {error.strerror}"
    if error.errno in _DENIED:
        return UserError(f"{said}: let the user of the node read it, or mend the glob")
    return UnavailableError(said)
