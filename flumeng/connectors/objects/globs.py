"""What the glob of a path means: which names, and into which directories a listing has to look.

``*``, ``?`` and ``[...]`` stand for what is within one directory, ``**`` for any number of
directories; at the end it stands for all that is below. As in Hadoop and Spark, names that begin
with ``.`` or ``_``, or end in ``._COPYING_``, are of things that are hidden or in progress
(``_temporary``, ``_flumeng``, ``_SUCCESS``); neither they nor what is below them is found, unless
their part of the glob begins with the same character. ``_name=value`` is a partition of a table and
not hidden. Directories before the first wildcard are as the glob says them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import cached_property

ANY_DEPTH = "**"
COPYING = "._COPYING_"
_WILDCARD = re.compile(r"[*?\[]")


class Part:
    """One name of a glob."""

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
    """``root`` is the directory before the first wildcard, without a slash at its end."""

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
        """That of the root."""
        return Scope(self, self.root, [0])


class Scope:
    """A directory, and which parts of the glob its names may be."""

    def __init__(self, glob: Glob, directory: str, at: Iterable[int]) -> None:
        self._parts = glob.parts
        self._last = len(glob.parts) - 1
        self._glob = glob
        places = set(at)
        for place in sorted(places):
            while self._parts[place].text == ANY_DEPTH:
                place += 1  # noqa: PLW2901  it stands for no directory, too
                places.add(place)
        self._at = sorted(places)
        self.directory = directory

    @property
    def deep(self) -> bool:
        """Whether all that is below may be meant, however deep."""
        return any(self._parts[place].text == ANY_DEPTH for place in self._at)

    @cached_property
    def start(self) -> str:
        """With what all names begin that are meant here."""
        return self._parts[self._at[0]].start if len(self._at) == 1 else ""

    def takes(self, name: str) -> bool:
        """Whether an object of that name is meant."""
        return self._last in self._at and self._parts[self._last].takes(name)

    def below(self, name: str, *, linked: bool = False) -> Scope | None:
        """What is meant in the directory of that name. ``**`` follows no links, so that none leads
        round in a circle."""
        at = []
        for place in self._at:
            part = self._parts[place]
            if part.text == ANY_DEPTH:
                if not linked and not is_hidden(name):
                    at.append(place)
            elif place < self._last and part.takes(name):
                at.append(place + 1)
        return Scope(self._glob, joined(self.directory, name), at).advanced() if at else None

    def advanced(self) -> Scope:
        """The same, past directories that need no look because the glob has their names."""
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
    """The path of a name; a directory without a name is the top of a bucket."""
    return f"{directory}/{name}" if directory not in ("", "/") else directory + name
