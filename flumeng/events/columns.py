"""Changes, adds, checks or casts columns of batches. A changed column keeps its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.platform.errors import UserError


def replaced(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """Return ``schema`` with the fields of the same names replaced and new ones appended."""
    given = {field.name: field for field in fields}
    kept = [given.pop(field.name, field) for field in schema]
    return pa.schema([*kept, *given.values()])


def changed(batch: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return ``batch`` with the columns of the same names replaced and new ones appended."""
    merged = {**{name: batch[name] for name in batch.schema.names}, **columns}
    new = [pa.field(name, column.type) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(list(merged.values()), schema=replaced(batch.schema, *new))


def either(passing: pa.Schema, through: pa.Schema) -> pa.Schema:
    """Return the schema for events that pass ``through`` a filter or bypass it as ``passing``: the
    columns of both, null where missing. Raises UserError when no type holds a column's values."""
    try:
        unified = pa.unify_schemas([passing, through], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(
            f"when: a column has another type in events that bypass the filter: {error}"
        ) from error
    both = {*passing.names} & {*through.names}
    return pa.schema(
        [field if field.name in both else field.with_nullable(True) for field in unified]
    )


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        batch[field.name].cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yield the events as tables of at least ``rows`` rows, except for the last table."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(part.num_rows for part in waiting) >= rows:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def check_plain(events: pa.Schema, names: Iterable[str], reader: str) -> None:
    """Raise UserError when a column is missing, or holds lists, maps or structs."""
    for name in names:
        if name not in events.names:
            shown = ", ".join(events.names) or "none"
            raise UserError(f"{reader}: the events have no column {name}, only {shown}")
        if pa.types.is_nested(events.field(name).type):
            raise UserError(
                f"{reader}: expected a text, number or time in the column {name}, not "
                f"{events.field(name).type}"
            )


def texts(column: pa.Array) -> pa.BinaryArray:
    """Return texts for keys and names: binary unchanged, times as RFC 3339 in UTC, other types as
    Arrow writes them."""
    if pa.types.is_timestamp(column.type):
        shown = pc.strftime(column, "%Y-%m-%dT%H:%M:%S")
        return pc.binary_join_element_wise(shown, "Z", "").cast(pa.binary())
    if pa.types.is_binary(column.type):
        return column
    return column.cast(pa.string()).cast(pa.binary())
