"""Fits event columns to an existing table by adding columns and widening types. Pure. Other types
of the table stay; a column that would lose values raises UserError."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from flumeng.platform.errors import UserError

_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FRACTIONS = (pa.float32(), pa.float64())


@dataclass(frozen=True)
class Fit:
    """Result of a fit. ``files``: event columns in the types of the table, once it has the columns
    ``added`` and the types ``widened``."""

    files: pa.Schema
    added: tuple[pa.Field, ...] = ()
    widened: tuple[pa.Field, ...] = ()


def fit(events: pa.Schema, table: pa.Schema, *, add: bool, widen: bool) -> Fit:
    """Fit event columns to the table; ``add`` and ``widen`` allow new columns and wider numbers.
    Nullable columns of the table may be missing in ``events``. Raises UserError for all others and
    for columns that do not fit."""
    check_names(events)
    by_name = {field.name: field for field in table}
    same_but_for_case = {field.name.lower(): field.name for field in table}
    files, added, widened = [], [], []
    for field in events:
        column = by_name.get(field.name)
        if column is None:
            if (other := same_but_for_case.get(field.name.lower())) is not None:
                raise UserError(
                    f"the column {field.name} is called {other} in the table: rename it in select"
                )
            added.append(field.with_nullable(True))
            files.append(field)
            continue
        kind = widest(column.type, field.type)
        if kind is None:
            raise UserError(
                f"the column {field.name} is {field.type}, and {column.type} in the table: cast it "
                "in select"
            )
        if kind != column.type:
            widened.append(column.with_type(kind))
        if field.nullable and not column.nullable:
            raise UserError(f"the table refuses nulls, but the column {field.name} may be null")
        files.append(field.with_type(kind))
    for name, column in by_name.items():
        if not column.nullable and name not in events.names:
            raise UserError(f"the table requires the column {name}, which the events do not have")
    if added and not add:
        raise UserError(f"the table has no column {added[0].name}: set `schema: add` to add it")
    if widened and not widen:
        field = events.field(widened[0].name)
        raise UserError(
            f"the column {field.name} is {field.type}, wider than {by_name[field.name].type} in "
            "the table: cast it in select"
        )
    return Fit(pa.schema(files), tuple(added), tuple(widened))


def check_names(events: pa.Schema) -> None:
    """Raise UserError when names are equal but for case: column names of tables ignore case."""
    seen: dict[str, str] = {}
    for name in events.names:
        if name.lower() in seen:
            both = f"{seen[name.lower()]} and {name}"
            raise UserError(f"a table cannot have the columns {both}, which differ only in case")
        seen[name.lower()] = name


def check_types(fields: Iterable[pa.Field]) -> None:
    """Raise UserError for types that no table can hold, like null and duration."""
    for field in fields:
        if not _is_storable(field.type):
            raise UserError(f"the column {field.name} is {field.type}, which no table can hold")


def widest(table: pa.DataType, events: pa.DataType) -> pa.DataType | None:
    """Return the wider of two types that differ only in width, or ``table`` when they are the same;
    else None. Names inside lists and maps are ignored; structs need the same names in order."""
    if table == events:
        return table
    for kinds in (_WHOLE, _FRACTIONS):
        if table in kinds and events in kinds:
            return max(table, events, key=kinds.index)
    if pa.types.is_decimal(table) and pa.types.is_decimal(events) and table.scale == events.scale:
        return max(table, events, key=lambda kind: int(kind.precision))
    if pa.types.is_list(table) and pa.types.is_list(events):
        return _widest_nested(table, events, lambda kinds: pa.list_(*kinds))
    if pa.types.is_map(table) and pa.types.is_map(events):
        return _widest_nested(table, events, lambda kinds: pa.map_(*kinds))
    if pa.types.is_struct(table) and pa.types.is_struct(events):
        names = [field.name for field in table]
        if names == [field.name for field in events]:
            return _widest_nested(
                table, events, lambda kinds: pa.struct(list(zip(names, kinds, strict=True)))
            )
    return None


def _widest_nested(
    table: pa.DataType, events: pa.DataType, build: Callable[[list[pa.DataType]], pa.DataType]
) -> pa.DataType | None:
    pairs = list(zip(_inner(table), _inner(events), strict=True))
    kinds = [widest(*pair) for pair in pairs]
    if None in kinds:
        return None
    return table if kinds == [own for own, _ in pairs] else build(kinds)


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(number).type for number in range(kind.num_fields)]


def _is_storable(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return all(map(_is_storable, _inner(kind)))
    return not (
        pa.types.is_null(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_interval(kind)
        or pa.types.is_time(kind)
    )
