"""The columns that the options of a format request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Mask
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.filters import ddl
from flumeng.filters.formats import Parsed
from flumeng.filters.options.fields import named
from flumeng.filters.options.parse import Parse
from flumeng.platform.errors import UserError

TEXTS = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class Field:
    column: str
    path: tuple[str, ...]
    type: pa.DataType
    misfit: str


def fields_of(options: Parse) -> tuple[Field, ...]:
    if options.schema is not None:
        ddl.columns_of(options.schema)
    try:
        requested = named(options.schema, options.fields)
    except ValueError as error:
        raise UserError(f"parse: {error}") from error
    typed_fields = [(column, field, ddl.type_of(field.type)) for column, field in requested.items()]
    require_own_types(pa.schema([pa.field(column, kind) for column, _, kind in typed_fields]))
    return tuple(
        Field(column, field.path, kind, f"{column} is no {field.type}")
        for column, field, kind in typed_fields
    )


def require_own_types(schema: pa.Schema) -> None:
    """Check that ``ts`` and ``host`` have the types of the event's columns. Raises UserError."""
    for name in ("ts", "host"):
        expected = EVENT_SCHEMA.field(name).type
        if name in schema.names and schema.field(name).type != expected:
            kind = "timestamp" if name == "ts" else "string"
            raise UserError(f"parse: the event column {name} must have the type {kind}")


def columns_of_fields(fields: Sequence[Field], into: str | None) -> pa.Schema:
    """Return the columns to add: not ``ts`` and ``host``, which replace those of the event."""
    new = [pa.field(it.column, it.type) for it in fields if it.column not in ("ts", "host")]
    return pa.schema(new if into is None else [*new, pa.field(into, TEXTS)])


def parsed_of(
    names: Sequence[str | None],
    columns: Sequence[pa.Array],
    unread: pa.Array,
    misfits: pa.Array | None = None,
) -> Parsed:
    """Build the result; ``ts`` and ``host`` replace those of the event. ``unread``: the reason for
    an unreadable body, whose columns become null. ``misfits``: the reason for a null value."""
    if unread.null_count < len(unread):
        failed = unread.is_valid().to_numpy(zero_copy_only=False)
        columns = [without(column, failed) for column in columns]
    kept = dict(zip(names, columns, strict=False))
    ts, host = kept.pop("ts", None), kept.pop("host", None)
    if misfits is None or misfits.null_count == len(misfits):
        reasons = unread
    else:
        reasons = pc.coalesce(unread, misfits)
    return Parsed(list(kept.values()), reasons, ts, host)


def without(column: pa.Array, failed: Mask) -> pa.Array:
    if not failed.any():
        return column
    return column.take(pa.array(np.arange(len(failed)), mask=failed))


def joined(parts: Sequence[Parsed]) -> Parsed:
    first = parts[0]
    return Parsed(
        [pa.concat_arrays(columns) for columns in zip(*(it.columns for it in parts), strict=True)],
        pa.concat_arrays([it.reasons for it in parts]),
        None if first.ts is None else pa.concat_arrays([it.ts for it in parts]),
        None if first.host is None else pa.concat_arrays([it.host for it in parts]),
    )
