"""Globs of object paths: matching, directories to list, overlap of two globs. As in Hadoop and
Spark, names that begin with ``.`` or ``_`` (but not ``_name=value``) are hidden with contents,
unless their glob part begins with the same character; names that end in ``._COPYING_`` always."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache

from flumeng.platform.options.locations import check_location
from flumeng.platform.options.patterns import TIME_PATTERNS, split_query

ANY_DEPTH = "**"
COPYING = "._COPYING_"
_WILDCARD = re.compile(r"[*?\[]")
_TOKEN = re.compile(r"\*+|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)
_PARAMETERS = re.compile(r"\?[\w.-]+=[^&]*(&[\w.-]+=[^&]*)*")
_CHARACTERS = [chr(code) for code in range(32, 0x180)]


class Part:
    def __init__(self, text: str) -> None:
        self.text = text
        self.start = _WILDCARD.split(text, maxsplit=1)[0]
        self.fixed = self.start == text
        self._matches = re.compile(translate(text)).match

    def takes(self, name: str) -> bool:
        if self._matches(name) is None or name.endswith(COPYING):
            return False
        return not is_hidden(name) or self.text[0] == name[0]


class Glob:
    """``root``: the directory before the first wildcard, without a trailing slash."""

    def __init__(self, path: str) -> None:
        names = path.split("/")
        fixed = 0
        while fixed < len(names) - 1 and not _WILDCARD.search(names[fixed]):
            fixed += 1
        self.root = "/".join(names[:fixed]) or path[:1] if fixed else ""
        rest = [name for name in names[fixed:] if name]
        if not rest or rest[-1] == ANY_DEPTH:
            rest.append("*")
        self.parts = [Part(name) for name in rest]

    @property
    def scope(self) -> Scope:
        return Scope(self, self.root, [0])


class Scope:
    """A directory, and the glob parts that names in it may match."""

    def __init__(self, glob: Glob, directory: str, at: Iterable[int]) -> None:
        self._parts = glob.parts
        self._last = len(glob.parts) - 1
        self._glob = glob
        indices = set(at)
        for index in sorted(indices):
            while self._parts[index].text == ANY_DEPTH:
                index += 1  # noqa: PLW2901  it matches no directory, too
                indices.add(index)
        self._at = sorted(indices)
        self.directory = directory

    @property
    def deep(self) -> bool:
        return any(self._parts[index].text == ANY_DEPTH for index in self._at)

    @cached_property
    def start(self) -> str:
        return self._parts[self._at[0]].start if len(self._at) == 1 else ""

    def takes(self, name: str) -> bool:
        return self._last in self._at and self._parts[self._last].takes(name)

    def below(self, name: str, *, linked: bool = False) -> Scope | None:
        """Return the scope of the directory ``name``; None when nothing in it can match. ``**``
        follows no links, which may be circular."""
        at = []
        for index in self._at:
            part = self._parts[index]
            if part.text == ANY_DEPTH:
                if not linked and part.takes(name):
                    at.append(index)
            elif index < self._last and part.takes(name):
                at.append(index + 1)
        return Scope(self._glob, joined(self.directory, name), at).advanced() if at else None

    def advanced(self) -> Scope:
        """Return the scope below literally named directories, which need no listing."""
        scope = self
        while len(scope._at) == 1 and scope._at[0] < scope._last:
            part = scope._parts[scope._at[0]]
            if not part.fixed:
                break
            directory = joined(scope.directory, part.text)
            scope = Scope(scope._glob, directory, [scope._at[0] + 1])
        return scope


def is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def joined(directory: str, name: str) -> str:
    """Join a directory and a name; an empty directory is the top of a bucket."""
    return f"{directory}/{name}" if directory not in ("", "/") else directory + name


def check_objects(text: str) -> None:
    """Raise ValueError for text that is no glob within one bucket or disk."""
    path, query = split_query(text)
    if query and _PARAMETERS.fullmatch(query) is None:
        raise ValueError(
            "in a URL a question mark begins the parameters of the store (?endpoint_override=...): "
            "to match one character use a set, such as [0-9]"
        )
    if "{" in path or "}" in path:
        raise ValueError("braces are not supported: list each path, or use [{] for a brace")
    if used := next((pattern for pattern in TIME_PATTERNS if pattern in path), ""):
        raise ValueError(f"{used} is not replaced in a glob: use * instead")
    if _WILDCARD.search(path.partition("://")[2].partition("/")[0]):
        raise ValueError("expected the name of one bucket: give a path for each")
    check_location(path.replace("%", "") + query)


def overlap(path: str, other: str) -> bool:
    (*above, name), (*other_above, other_name) = _parts(path), _parts(other)
    return _same(name, other_name) and _meet(above, other_above, ANY_DEPTH.__eq__, _same)


def _parts(path: str) -> list[str]:
    plain = split_query(path)[0]
    names = [name for name in (plain.partition("://")[2] or plain).split("/") if name]
    return [*names, "*"] if not names or names[-1] == ANY_DEPTH else names


def _meet(
    pattern: Sequence[str],
    other: Sequence[str],
    is_any: Callable[[str], bool],
    share: Callable[[str, str], bool],
) -> bool:
    """Return whether a sequence matches both patterns. ``is_any`` matches any count of elements."""
    left, met = [(0, 0)], set()
    while left:
        pair = at, other_at = left.pop()
        if pair in met:
            continue
        if pair == (len(pattern), len(other)):
            return True
        met.add(pair)
        mine, its = pattern[at : at + 1], other[other_at : other_at + 1]
        if any(map(is_any, (*mine, *its))):
            left += [(at + 1, other_at) for _ in mine] + [(at, other_at + 1) for _ in its]
        elif mine and its and share(mine[0], its[0]):
            left.append((at + 1, other_at + 1))
    return False


@lru_cache(4096)
def _same(name: str, other: str) -> bool:
    return _meet(_TOKEN.findall(name), _TOKEN.findall(other), lambda token: token[0] == "*", _share)


@lru_cache(4096)
def _share(token: str, other: str) -> bool:
    matches = [re.compile(translate(pattern)).match for pattern in (token, other)]
    return any(all(match(c) for match in matches) for c in {*_CHARACTERS, token[0], other[0]})
