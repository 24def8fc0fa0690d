"""Globs of files on a host: `*`, `?`, `[...]`, `**` for any folders, and `{a,b}` for either."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import pairwise

from flumeng.platform.options.quantities import check_absolute

MOST_ALTERNATIVES = 1000


def check_file_glob(text: str) -> None:
    check_absolute(text)
    for pattern in expand(text):
        if pattern.endswith("/"):
            raise ValueError(
                "expected files; this names a folder and can match nothing: add a name or `*`"
            )


def expand(pattern: str) -> tuple[str, ...]:
    """The patterns that a glob with `{a,b}` stands for. Braces without a comma, and those within
    brackets, mean themselves, as in a shell. Raises ValueError."""
    found = tuple(dict.fromkeys(_alternatives(pattern)))
    if len(found) > MOST_ALTERNATIVES:
        raise ValueError(f"expected at most {MOST_ALTERNATIVES} alternatives")
    return found


def matches(path: str, pattern: str) -> bool:
    """Whether an expanded glob means a file of that name."""
    return _match(path.split("/"), pattern.split("/"))


def _match(names: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_match(names[skip:], patterns[1:]) for skip in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _match(names[1:], patterns[1:])


def _alternatives(pattern: str) -> list[str]:
    opened = _first_group(pattern)
    if opened is None:
        return [pattern]
    begin, commas, end = opened
    edges = [begin, *commas, end]
    tails = _alternatives(pattern[end + 1 :])
    found = [
        pattern[:begin] + middle + tail
        for left, right in pairwise(edges)
        for middle in _alternatives(pattern[left + 1 : right])
        for tail in tails
    ]
    return found[: MOST_ALTERNATIVES + 1]


def _first_group(pattern: str) -> tuple[int, list[int], int] | None:
    """Where the first group with a comma opens, its commas, and where it closes."""
    for begin, depth_at in _braces(pattern):
        commas, depth = [], 0
        for at, sign in depth_at:
            depth += {"{": 1, "}": -1}.get(sign, 0)
            if sign == "," and not depth:
                commas.append(at)
            if depth < 0:
                break
        else:
            if commas:
                raise ValueError(f"expected a closing brace for {pattern[begin:]!r}")
            continue
        if commas:
            return begin, commas, at
    return None


def _braces(pattern: str) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Each opening brace, and the signs behind it; those within brackets are letters."""
    signs = [(at, sign) for at, sign in enumerate(pattern) if sign in "{},"]
    signs = [(at, sign) for at, sign in signs if not _is_bracketed(pattern, at)]
    for number, (at, sign) in enumerate(signs):
        if sign == "{":
            yield at, signs[number + 1 :]


def _is_bracketed(pattern: str, at: int) -> bool:
    opening = pattern.rfind("[", 0, at)
    if opening < 0:
        return False
    first = opening + (2 if pattern[opening + 1 : opening + 2] == "!" else 1)
    closing = pattern.find("]", first + 1)
    return opening < at < closing
