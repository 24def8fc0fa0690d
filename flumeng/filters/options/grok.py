"""Grok: regular expressions with names for parts.

``%{IPORHOST:client}`` is the pattern IPORHOST in a group ``client``; ``%{NUMBER:bytes:int}`` has a
type. Patterns are expanded to one expression of RE2 with numbered groups, since a field may occur
several times. They are written for Oniguruma, whose flag ``m`` is ``s`` in RE2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from flumeng.platform.options.patterns import check_regex
from flumeng.platform.options.problems import nearest

TYPES = {
    "string": "STRING",
    "int": "BIGINT",
    "long": "BIGINT",
    "float": "DOUBLE",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMP",
}
_MOST_CHARACTERS = 32_768
_MOST_LEVELS = 32
_PARTS = re.compile(
    r"%\{(?P<name>[A-Za-z0-9_]+)(?::(?P<field>[^:}]+))?(?::(?P<type>[^}]*))?\}"
    r"|(?P<escape>\\.)"
    r"|(?P<set>\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\])"
    r"|\(\?P?<(?P<group>[A-Za-z_]\w*)>"
    r"|\(\?(?P<flags>[A-Za-z-]+)(?=[:)])"
    r"|(?P<plain>\((?!\?))"
    r"|(?P<wrong>%\{)",
    re.DOTALL,
)
_FIELD = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Grok:
    """An expanded pattern: ``regex`` has groups ``f0``, ``f1``, ... for the columns ``fields``;
    ``types`` are in Spark DDL."""

    regex: str
    fields: tuple[str, ...]
    types: Mapping[str, str]


@cache
def library() -> Mapping[str, str]:
    text = files("flumeng.filters.options").joinpath("grok_patterns.txt").read_text("utf-8")
    pairs = (line.partition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: pattern for name, _, pattern in pairs}


def check_name(text: str) -> None:
    if not re.fullmatch("[A-Za-z0-9_]+", text):
        raise ValueError("expected a name of letters, digits and _")


def written_out(pattern: str, more: Mapping[str, str]) -> Grok:
    """Expand a pattern; ``more`` adds patterns to the library. Raises ValueError."""
    writer = _Writer({**library(), **more})
    regex = "".join(writer.parts(pattern, ()))
    if not writer.fields:
        raise ValueError("expected a field, like %{IPORHOST:client}")
    check_regex(regex)
    return Grok(regex, tuple(writer.fields), writer.types)


class _Writer:
    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = patterns
        self._characters = 0
        self.fields: list[str] = []
        self.types: dict[str, str] = {}

    def parts(self, pattern: str, within: tuple[str, ...]) -> Iterator[str]:
        at = 0
        for part in _PARTS.finditer(pattern):
            yield self._counted(pattern[at : part.start()])
            at = part.end()
            if part["name"]:
                yield from self._named(part["name"], part["field"], part["type"], within)
            elif part["group"]:
                yield self._group(part["group"], None)
            elif part["flags"]:
                yield "(?" + part["flags"].replace("m", "s")
            elif part["plain"]:
                yield "(?:"
            elif part["wrong"]:
                raise ValueError(f"expected %{{NAME}}, not {pattern[part.start() :][:20]}")
            else:
                yield self._counted(part[0])
        yield self._counted(pattern[at:])

    def _named(
        self, name: str, field: str | None, kind: str | None, within: tuple[str, ...]
    ) -> Iterator[str]:
        if name not in self._patterns:
            raise ValueError(f"unknown pattern {name}; {nearest(name, self._patterns)}")
        if name in within or len(within) > _MOST_LEVELS:
            raise ValueError(f"the pattern {name} contains itself")
        yield self._group(field, kind) if field else self._counted("(?:")
        yield from self.parts(self._patterns[name], (*within, name))
        yield ")"

    def _group(self, field: str, kind: str | None) -> str:
        if not _FIELD.fullmatch(field):
            raise ValueError(f"expected a field of letters, digits and _, not {field}")
        if kind is not None and kind not in TYPES:
            raise ValueError(f"unknown type {kind}; {nearest(kind, TYPES)}")
        ddl_type = TYPES[kind or "string"]
        if self.types.setdefault(field, ddl_type) != ddl_type:
            raise ValueError(f"the field {field} has two types")
        self.fields.append(field)
        return f"(?P<f{len(self.fields) - 1}>"

    def _counted(self, text: str) -> str:
        self._characters += len(text)
        if self._characters > _MOST_CHARACTERS:
            raise ValueError(f"the expanded pattern has more than {_MOST_CHARACTERS} characters")
        return text


def all_types(patterns: tuple[str, ...], more: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of several patterns, with types. Raises ValueError."""
    types: dict[str, str] = {}
    for pattern in patterns:
        for field, kind in written_out(pattern, more).types.items():
            if types.setdefault(field, kind) != kind:
                raise ValueError(f"the field {field} has two types")
    return types
