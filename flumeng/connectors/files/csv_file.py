"""CSV with a header: plain columns, text in UTF-8, nothing for a null and ``""`` for no text.

A body that is not UTF-8 has U+FFFD in it, and comes as ``body_base64`` too; other bytes are base64.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from flumeng.connectors.files.plain_columns import plain
from flumeng.events import json_text

BODY, EXACT_BODY = "body", "body_base64"
ROWS_AT_ONCE = 1024


class CsvFile:
    def __init__(self, sink: pa.NativeFile, schema: pa.Schema, codec: str | None) -> None:
        self._sink = sink
        self._out = pa.CompressedOutputStream(sink, codec) if codec else sink
        options = csv.WriteOptions(batch_size=ROWS_AT_ONCE, quoting_style="needed")
        columns = texts(schema.empty_table()).schema
        self._writer = csv.CSVWriter(self._out, columns, write_options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(texts(rows))

    def close(self) -> None:
        self._writer.close()
        self._out.close()
        self._sink.close()


def texts(rows: pa.Table) -> pa.Table:
    """Columns of types that CSV has. Raises UserError when two would have one name."""
    rows = plain(rows)
    for number, field in enumerate(rows.schema):
        column = rows.column(number)
        if field.name == BODY and pa.types.is_binary(field.type):
            text = _readable(column)
            rows = rows.set_column(number, BODY, text)
            changed = pc.not_equal(text.cast(pa.binary()), column)
            none = pa.scalar(None, pa.binary())
            exact = _base64(pc.if_else(pc.fill_null(changed, False), column, none))
            rows = rows.append_column(EXACT_BODY, exact)
        elif pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            rows = rows.set_column(number, field.name, _base64(column))
    return rows


def _readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = (v if v is None else v.decode("utf-8", "replace") for v in column.to_pylist())
        return pa.chunked_array([pa.array(values, pa.string())])


def _base64(column: pa.ChunkedArray) -> pa.ChunkedArray:
    quoted = [json_text.values(EXACT_BODY, chunk) for chunk in column.chunks]
    return pc.utf8_slice_codeunits(pa.chunked_array(quoted, pa.binary()).cast(pa.string()), 1, -1)
