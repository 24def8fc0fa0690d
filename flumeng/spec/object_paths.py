"""Globs that name objects: what may be said, and whether two of them mean the same objects.

What each part of a glob means ``flumeng.inputs.objects.globs`` says; here they are only compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache

from flumeng.spec.locations import check_location
from flumeng.spec.patterns import TIME_PATTERNS, split_query

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
    return _meet(_parts(one), _parts(other))


def _parts(path: str) -> tuple[str, ...]:
    place = split_query(path)[0]
    names = [name for name in (place.partition("://")[2] or place).split("/") if name]
    return (*names, "*") if not names or names[-1] == ANY_DEPTH else tuple(names)


@lru_cache(4096)
def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """As far as directories go: ``**`` stands for any number of them."""
    if not one or not other:
        return one == other
    for some, rest in ((one, other), (other, one)):
        if some[0] == ANY_DEPTH:
            return _meet(some[1:], rest) or (len(rest) > 1 and _meet(some, rest[1:]))
    return _same(tuple(_TOKEN.findall(one[0])), tuple(_TOKEN.findall(other[0]))) and _meet(
        one[1:], other[1:]
    )


@lru_cache(16384)
def _same(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether there is a name that both mean."""
    for some, rest in ((one, other), (other, one)):
        if some and some[0][0] == "*":
            return _same(some[1:], rest) or (bool(rest) and _same(some, rest[1:]))
    if not one or not other:
        return not one and not other
    return _share(one[0], other[0]) and _same(one[1:], other[1:])


@lru_cache(4096)
def _share(one: str, other: str) -> bool:
    """Whether there is a character that both mean."""
    matches = [re.compile(translate(token)).match for token in (one, other)]
    return any(all(match(c) for match in matches) for c in {*_CHARACTERS, one[0], other[0]})
