"""Nested columns made plain, by a rule that depends on the columns' types alone.

A struct becomes a column for each of its fields, ``a_b`` for ``b`` in ``a``, at any depth; null
when the struct is. A map or a list becomes its JSON text. All else stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from flumeng.events import json_text
from flumeng.platform.errors import UserError


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """That of ``plain``. Raises UserError when two columns would have one name."""
    found = plain(schema.empty_table()).schema
    names = [name.lower() for name in found.names]
    for name in found.names:
        if names.count(name.lower()) > 1:
            raise UserError(f"files: two columns would be {name}: rename one with select")
    return found


def plain(rows: pa.Table) -> pa.Table:
    named = [pair for name in rows.column_names for pair in _plain(name, rows[name])]
    return pa.Table.from_arrays([column for _, column in named], [name for name, _ in named])


def _plain(name: str, column: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    kind = column.type
    if pa.types.is_struct(kind):
        fields = pa.table({name: column}).flatten()
        for number in range(kind.num_fields):
            yield from _plain(f"{name}_{kind.field(number).name}", fields.column(number))
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        texts = [json_text.values(name, chunk).cast(pa.string()) for chunk in column.chunks]
        yield name, pa.chunked_array(texts, pa.string())
    else:
        yield name, column
