"""Globs that name objects: what may be said, and whether two of them mean the same objects.

``flumeng.connectors.objects.globs`` matches names against globs; this module only compares globs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import lru_cache

from flumeng.platform.options.locations import check_location
from flumeng.platform.options.patterns import TIME_PATTERNS, split_query

ANY_DEPTH = "**"
_TOKEN = re.compile(r"\*+|\[[!^]?\]?[^\]]*\]|.", re.DOTALL)
_PARAMETERS = re.compile(r"\?[\w.-]+=[^&]*(&[\w.-]+=[^&]*)*")
_WILD = frozenset("*?[")
_CHARACTERS = [chr(code) for code in range(32, 0x180)]


def check_objects(text: str) -> None:
    """Raises ValueError for what is no glob of one place."""
    place, query = split_query(text)
    if query and _PARAMETERS.fullmatch(query) is None:
        raise ValueError(
            "in a URL a question mark begins how the store is reached (?endpoint_override=...): "
            "for one character name those that it may be, as in [0-9]"
        )
    if "{" in place or "}" in place:
        raise ValueError(
            "braces mean nothing in a glob: give each path by itself, or say [{] for a brace"
        )
    if used := next((one for one in TIME_PATTERNS if one in place), ""):
        raise ValueError(f"{used} is not replaced in a glob: say * for what may stand there")
    if _WILD & set(place.partition("://")[2].partition("/")[0]):
        raise ValueError("expected the name of one bucket: give a path for each")
    check_location(place.replace("%", "") + query)


def overlap(one: str, other: str) -> bool:
    """Whether two globs mean one object, if there is one with such a name."""
    (*above, name), (*other_above, other_name) = _parts(one), _parts(other)
    return _same(name, other_name) and _meet(above, other_above, ANY_DEPTH.__eq__, _same)


def _parts(path: str) -> list[str]:
    """Directories, and the name of an object."""
    place = split_query(path)[0]
    names = [name for name in (place.partition("://")[2] or place).split("/") if name]
    return [*names, "*"] if not names or names[-1] == ANY_DEPTH else names


def _meet(
    one: Sequence[str],
    other: Sequence[str],
    is_any: Callable[[str], bool],
    share: Callable[[str, str], bool],
) -> bool:
    """Whether both can mean the same sequence: what ``is_any`` stands for any number of elements,
    and of each two others is known whether they ``share`` one."""
    left, met = [(0, 0)], set()
    while left:
        place = at, other_at = left.pop()
        if place in met:
            continue
        if place == (len(one), len(other)):
            return True
        met.add(place)
        mine, its = one[at : at + 1], other[other_at : other_at + 1]
        if any(map(is_any, (*mine, *its))):
            left += [(at + 1, other_at) for _ in mine] + [(at, other_at + 1) for _ in its]
        elif mine and its and share(mine[0], its[0]):
            left.append((at + 1, other_at + 1))
    return False


@lru_cache(4096)
def _same(one: str, other: str) -> bool:
    """Whether there is a name that both mean."""
    return _meet(_TOKEN.findall(one), _TOKEN.findall(other), lambda token: token[0] == "*", _share)


@lru_cache(4096)
def _share(one: str, other: str) -> bool:
    """Whether there is a character that both mean."""
    matches = [re.compile(translate(token)).match for token in (one, other)]
    return any(all(match(c) for match in matches) for c in {*_CHARACTERS, one[0], other[0]})
