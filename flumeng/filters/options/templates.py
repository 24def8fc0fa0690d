"""Templates with columns in braces, like ``{host}-{app}`` or ``{attrs.x}``; ``{{`` is a brace."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flumeng.config.column_kinds import RECEIVED, Columns

ATTRIBUTE = re.compile(r"attrs\.(?P<key>[A-Za-z0-9_.-]{1,200})", re.ASCII)
_TOKENS = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|(?P<brace>[{}])|[^{}]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_.-]+)?", re.ASCII)


def is_attribute(name: str, columns: Columns) -> bool:
    """Whether ``name`` is an entry of ``attrs``, no column. Raises ValueError without ``attrs``."""
    if ATTRIBUTE.fullmatch(name) is None or name in columns:
        return False
    if columns.get("attrs") != RECEIVED["attrs"]:
        raise ValueError(f"{name} needs the column attrs as it was received")
    return True


@dataclass(frozen=True)
class Field:
    name: str
    key: str | None = None


Part = str | Field


def parse(text: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for token in _TOKENS.finditer(text):
        if token["brace"]:
            raise ValueError('expected columns in braces, like "{host}-{app}", and {{ for a brace')
        if token["name"] is not None:
            parts.append(_field(token["name"]))
        else:
            literal = token[0].replace("{{", "{").replace("}}", "}")
            before = parts.pop() if parts and isinstance(parts[-1], str) else ""
            parts.append(f"{before}{literal}")
    return tuple(parts)


def _field(name: str) -> Field:
    attribute = ATTRIBUTE.fullmatch(name)
    if attribute is not None:
        return Field("attrs", attribute["key"])
    if not _NAME.fullmatch(name) or "." in name:
        raise ValueError(f"expected a column or attrs.KEY in braces, not {{{name}}}")
    return Field(name)
