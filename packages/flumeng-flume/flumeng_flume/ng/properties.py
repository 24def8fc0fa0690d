"""Properties files as ``java.util.Properties`` reads them, with the line of each key.

Lines that begin with ``#`` or ``!`` are comments; a line that ends with an odd number of
backslashes goes on in the next one; a key ends at the first ``=``, ``:`` or white space that has no
backslash before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<sign>.)|$)", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """A key and its value; ``damage``: the error in their spelling, if any."""

    line: int
    key: str
    value: str
    damage: str = ""


def read(text: str) -> Iterator[Entry]:
    """Yield every entry in order, including those that a later one replaces."""
    for line, logical in _logical_lines(text.removeprefix("\ufeff")):
        key, value = _split(logical)
        broken = any(
            match["sign"] == "u" for part in (key, value) for match in _ESCAPE.finditer(part)
        )
        damage = "\\u is not followed by four hexadecimal digits, which Java refuses"
        yield Entry(line, _unescaped(key), _unescaped(value), damage if broken else "")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    joined, first = "", 0
    for number, natural in enumerate(re.split("\r\n|\r|\n", text), 1):
        part = natural.lstrip(_BLANK)
        if not first:
            if not part or part[0] in "#!":
                continue
            first = number
        if _goes_on(part):
            joined += part[:-1]
            continue
        yield first, joined + part
        joined, first = "", 0
    if first and joined:
        yield first, joined


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    at, length = 0, len(line)
    while at < length and line[at] not in "=:" + _BLANK:
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(_BLANK)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_BLANK)
    return key, rest


def _unescaped(text: str) -> str:
    def meant(match: re.Match[str]) -> str:
        if match["code"]:
            return chr(int(match["code"], 16))
        sign = match["sign"] or ""
        return _ESCAPES.get(sign, sign)

    joined = _ESCAPE.sub(meant, text)
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
