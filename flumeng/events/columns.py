"""Columns of a batch, changed and added; the others stay as they are, in their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from flumeng.platform.errors import UserError


def replaced(schema: pa.Schema, *fields: pa.Field) -> pa.Schema:
    """``schema`` with ``fields`` in the places of those of their names, or behind all others."""
    given = {field.name: field for field in fields}
    kept = [given.pop(field.name, field) for field in schema]
    return pa.schema([*kept, *given.values()])


def changed(batch: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """``batch`` with ``columns`` in the places of those of their names, or behind all others."""
    found = {**{name: batch[name] for name in batch.schema.names}, **columns}
    new = [pa.field(name, column.type) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(list(found.values()), schema=replaced(batch.schema, *new))


def either(passing: pa.Schema, through: pa.Schema) -> pa.Schema:
    """Of events of which some pass a filter by, and the others go ``through`` it: all columns of
    both, which may be null. Raises UserError when no type holds both."""
    try:
        found = pa.unify_schemas([passing, through], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(
            f"when: a column of events that pass by has another type: {error}"
        ) from error
    both = {*passing.names} & {*through.names}
    return pa.schema(
        [field if field.name in both else field.with_nullable(True) for field in found]
    )


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, null where ``batch`` has none."""
    columns = [
        batch[field.name].cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """All events in tables of so many at least, but for the last."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(part.num_rows for part in waiting) >= rows:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
