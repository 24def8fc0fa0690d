"""The options of the filter ``set``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import (
    EVENT,
    RECEIVED,
    Columns,
    Kind,
    check_column,
    require_column,
    require_new,
)
from flumeng.config.component import FilterOptions, problem_of
from flumeng.config.functions import ATOMIC, BINARY, TEXT, VOID
from flumeng.filters.options import templates
from flumeng.platform.options.option import option

MAX_GROWTH = 100
_ATTRS = "attrs"


def check_target(text: str) -> None:
    if templates.ATTRIBUTE.fullmatch(text):
        return
    if text == _ATTRS:
        raise ValueError("expected an entry of attrs, like attrs.environment")
    if text in EVENT and text not in RECEIVED:
        raise ValueError(f"{text} is the name of a column that flumeng sets: it cannot be changed")
    check_column(text)


@dataclass(frozen=True)
class Set(FilterOptions):
    """Sets columns, and entries of `attrs`, to constants, other columns or texts of both."""

    implementation: ClassVar[str] = "flumeng.filters.set:SetFilter"

    bare: ClassVar[str] = "columns"

    columns: Mapping[str, str] = option(
        doc='Each column, or `attrs.KEY`, with its template: `"{host}-{app}"` inserts columns, '
        'and `"{app}"` alone copies the column with its type.',
        check=check_target,
        example='{environment: production, place: "{host}/{attrs.path}"}',
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, text in self.columns.items():
            yield from problem_of(name, templates.parse, text)

    def looked_up(self, before: Columns, after: Columns, earlier: frozenset[str], /) -> set[str]:
        made = super().looked_up(before, after, earlier)
        return made | {name.partition(".")[0] for name in self.columns}

    def behind(self, columns: Columns) -> Columns:
        result = dict(columns)
        for name, text in self.columns.items():
            kind = _kind(name, templates.parse(text), columns)
            if templates.ATTRIBUTE.fullmatch(name):
                _require_attrs(columns)
                if kind.name not in ATOMIC - {VOID}:
                    expected = f"expected a text, number or time for {name}"
                    raise ValueError(f"{expected}, not a {kind.name}")
            elif name in columns:
                _require_alike(name, columns[name], kind)
                result[name] = Kind(columns[name].name, growth=kind.growth)
            else:
                require_new(result, [name])
                result[name] = kind
        return result


def _kind(target: str, parts: tuple[templates.Part, ...], columns: Columns) -> Kind:
    kinds = [_kind_of(part, columns) for part in parts if isinstance(part, templates.Field)]
    if len(parts) == 1 and kinds:
        return kinds[0]
    for part, kind in zip((p for p in parts if isinstance(p, templates.Field)), kinds, strict=True):
        if kind.name not in ATOMIC - {VOID}:
            raise ValueError(f"the column {part.name} is a {kind.name}, which cannot be in a text")
    growth = sum(kind.growth for kind in kinds)
    if growth > MAX_GROWTH:
        raise ValueError(
            f"{target} may become {growth} times as large as the event, more than {MAX_GROWTH}: "
            "insert fewer columns"
        )
    return Kind(TEXT, growth=growth)


def _kind_of(field: templates.Field, columns: Columns) -> Kind:
    if field.key is None:
        return require_column(columns, field.name)
    _require_attrs(columns)
    return Kind(TEXT)


def _require_attrs(columns: Columns) -> None:
    if columns.get(_ATTRS) != RECEIVED[_ATTRS]:
        raise ValueError("set needs the column attrs as it was received: put select after set")


def _require_alike(name: str, before: Kind, kind: Kind) -> None:
    """Raise ValueError if a column changes kind: a condition may keep some values unchanged."""
    if kind.name == TEXT and before.name in (TEXT, BINARY):
        return
    if kind.name != before.name or kind.name not in _SAME_WIDTH:
        raise ValueError(
            f"the column {name} is a {before.name}, and its new value a {kind.name}: set or select "
            "another column"
        )


_SAME_WIDTH = ATOMIC - {VOID, "integer", "fraction"}
"""Kinds with a single type."""
