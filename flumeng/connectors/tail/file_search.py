"""Search for files by globs. A folder that cannot be searched is reported with its reason.

`**` follows links to folders, but enters no folder within itself. Blocking.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate

from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS

_MAGIC = re.compile(r"[*?\[]")
_Identity = tuple[int, int]


class FileSearch:
    """Of expanded ``patterns``. ``unsearched`` are the folders that could not be searched last
    time, with the reasons."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [tuple(pattern.split("/")[1:]) for pattern in patterns]
        self.unsearched: dict[str, OSError] = {}

    def paths(self) -> Iterator[str]:
        """The paths that match now, pattern after pattern, sorted. Raises OSError when no file
        descriptor is left for a folder."""
        self.unsearched = {}
        for parts in self._patterns:
            yield from sorted(self._below("", parts, ()))

    def _below(
        self, folder: str, parts: tuple[str, ...], above: tuple[_Identity, ...]
    ) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._below(folder, rest or ("*",), above)
            for path, identity in self._folders(folder):
                if identity not in above:
                    yield from self._below(path, parts, (*above, identity))
        elif not _MAGIC.search(part):
            path = f"{folder}/{part}"
            if rest:
                yield from self._below(path, rest, above)
            elif os.path.lexists(path):
                yield path
        else:
            is_named = re.compile(translate(part)).match
            hidden = part.startswith(".")
            for name in self._names(folder):
                if (hidden or not name.startswith(".")) and is_named(name):
                    path = f"{folder}/{name}"
                    if not rest:
                        yield path
                    elif os.path.isdir(path):  # noqa: PTH112  a Path for each costs more
                        yield from self._below(path, rest, above)

    def _folders(self, folder: str) -> Iterator[tuple[str, _Identity]]:
        for name in self._names(folder):
            path = f"{folder}/{name}"
            if not name.startswith(".") and os.path.isdir(path):  # noqa: PTH112
                status = os.stat(path)  # noqa: PTH116
                yield path, (status.st_dev, status.st_ino)

    def _names(self, folder: str) -> list[str]:
        try:
            return os.listdir(folder or "/")  # noqa: PTH208
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
            self.unsearched[folder or "/"] = error
            return []
