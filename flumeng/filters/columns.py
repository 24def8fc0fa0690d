"""Columns of a batch, changed and added; the others stay as they are, in their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa


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
