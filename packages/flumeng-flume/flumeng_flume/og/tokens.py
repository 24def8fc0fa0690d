"""Splits a specification into tokens, with the position of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flumeng_flume.og.tree import At

Kind = Literal["name", "text", "number", "sign", "end"]
_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)"
    r"|(?P<ip>\d{1,3}(?:\.\d{1,3}){3}(?![\w.]))"
    r"|(?P<number>-?(?:0[xX][0-9a-fA-F]+|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[fFdDlL]?)(?![\w.]))"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9._-]*)"
    r'|"(?P<text>(?:[^"\\]|\\.)*)"'
    r"|(?P<sign>=>|[:|;(),\[\]{}<>?=])",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([0-3]?[0-7]{1,2})|(.))", re.DOTALL)
_SIGNS = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


@dataclass(frozen=True)
class Token:
    kind: Kind
    text: str
    at: At

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f'"{self.text[:40]}"'


class SyntaxProblem(Exception):  # noqa: N818  reported as a problem
    """The position and cause of a syntax error."""

    def __init__(self, at: At, why: str) -> None:
        super().__init__(why)
        self.at = at
        self.why = why


class Lines:
    """The lines of a text, to find the line and column of an offset."""

    def __init__(self, text: str, first: At = At(1, 1)) -> None:  # noqa: B008  frozen
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._first = first

    def at(self, offset: int) -> At:
        low, high = 0, len(self._starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._starts[middle] <= offset else (low, middle)
        column = offset - self._starts[low]
        shift = self._first.column if low == 0 else 1
        return At(self._first.line + low, column + shift)


def tokens(text: str, first: At) -> Iterator[Token]:
    """Yield the tokens of a text that begins at ``first``; the last one is its end. Raises
    ``SyntaxProblem``."""
    lines, offset = Lines(text, first), 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            raise SyntaxProblem(lines.at(offset), _unreadable(text, offset))
        at, offset = lines.at(offset), match.end()
        if match["name"] or match["ip"]:
            yield Token("name", match["name"] or match["ip"], at)
        elif match["number"]:
            yield Token("number", match["number"], at)
        elif match["sign"]:
            yield Token("sign", match["sign"], at)
        elif match["text"] is not None:
            yield Token("text", unescaped(match["text"]), at)
    yield Token("end", "", lines.at(len(text)))


def _unreadable(text: str, offset: int) -> str:
    if text[offset] == '"':
        return 'unclosed text: expected "'
    if text.startswith("/*", offset):
        return "unclosed comment: expected */"
    return f"unexpected character in a specification: {text[offset]!r}"


def unescaped(text: str) -> str:
    def meant(match: re.Match[str]) -> str:
        code, octal, sign = match.groups()
        if code or octal:
            point = int(code, 16) if code else int(octal, 8)
            return "\ufffd" if 0xD800 <= point < 0xE000 else chr(point)
        return _SIGNS.get(sign, sign)

    return _ESCAPE.sub(meant, text)
