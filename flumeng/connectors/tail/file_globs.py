"""File globs of a host: `*`, `?`, `[...]`, `**` for any folders, and `{a,b}` for either."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase, translate

from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS
from flumeng.platform.options.quantities import check_absolute

MOST_ALTERNATIVES = 1000
_MAGIC = re.compile(r"[*?\[]")
_GROUP = re.compile(r"\{([^{}]*)\}")
_BRACKETS = re.compile(r"\[!?.[^]]*\]")
_AS_TEXT = str.maketrans("{},", "\0\1\2")
_FROM_TEXT = str.maketrans("\0\1\2", "{},")
_Identity = tuple[int, int]


def check_file_glob(text: str) -> None:
    check_absolute(text)
    for pattern in expand(text):
        if pattern.endswith("/"):
            raise ValueError("expected a pattern of files, not of a folder: add a name or `*`")


def expand(pattern: str) -> tuple[str, ...]:
    """Expand `{a,b}` into several patterns. As in a shell, braces without a comma or in brackets
    are literal. Raises ValueError."""
    globs = {_BRACKETS.sub(lambda part: part[0].translate(_AS_TEXT), pattern): None}
    while any(map(_GROUP.search, globs)):
        globs = dict.fromkeys(new for old in globs for new in _first_group_expanded(old))
        if len(globs) > MOST_ALTERNATIVES:
            raise ValueError(f"expected at most {MOST_ALTERNATIVES} alternatives")
    for glob in globs:
        _, brace, rest = glob.partition("{")
        if brace and "," in rest:
            raise ValueError(f"expected a closing brace for {brace + rest!r}")
    return tuple(glob.translate(_FROM_TEXT) for glob in globs)


def matches(path: str, pattern: str) -> bool:
    return _match(path.split("/"), pattern.split("/"))


def _match(names: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_match(names[skip:], patterns[1:]) for skip in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _match(names[1:], patterns[1:])


def _first_group_expanded(pattern: str) -> list[str]:
    """Expand the first innermost pair of braces."""
    group = _GROUP.search(pattern)
    if group is None:
        return [pattern]
    before, after = pattern[: group.start()], pattern[group.end() :]
    if "," not in group[1]:
        return [before + group[0].translate(_AS_TEXT) + after]
    return [before + text + after for text in group[1].split(",")]


class FileSearch:
    """Searches files by expanded ``patterns``; blocking. ``**`` follows links to folders, but never
    into an enclosing folder. ``unsearched``: errors of the last search, by folder."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [tuple(pattern.split("/")[1:]) for pattern in patterns]
        self.unsearched: dict[str, OSError] = {}

    def paths(self) -> Iterator[str]:
        """Yield matching paths, sorted for each pattern. OSError if out of descriptors."""
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
            if name.startswith("."):
                continue
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:
                continue  # deleted meanwhile, or a broken link
            if stat.S_ISDIR(status.st_mode):
                yield path, (status.st_dev, status.st_ino)

    def _names(self, folder: str) -> list[str]:
        try:
            return os.listdir(folder or "/")  # noqa: PTH208
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
            self.unsearched[folder or "/"] = error
            return []
