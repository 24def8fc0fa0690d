"""File writers for each format. They accept tables of events; a file is complete when closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv, orc

from flumeng.connectors.files import avro_file
from flumeng.events import json_text
from flumeng.platform.errors import UserError

UNREPEATED = frozenset({"body", "message", "seq", "ts"})
ENDINGS = {"zstd": "zst", "gzip": "gz"}
WITHIN = ("parquet", "orc", "avro")
"""Formats that compress inside the file, so file names do not show the compression."""
ROWS_AT_ONCE = 20_000

Texts = Callable[[pa.RecordBatch], pa.Array]


class FileWriter(Protocol):
    def write(self, rows: pa.Table) -> None: ...

    def close(self) -> None:
        """Write the end of the file, and close it."""


class ParquetFile:
    """Writes Parquet: one row group per ``write``, dictionaries only for repeating columns."""

    def __init__(self, sink: pa.NativeFile, schema: pa.Schema, compression: str) -> None:
        self._sink = sink
        self._footers: list[pq.FileMetaData] = []
        repeated = [name for field in schema for name in _repeated(field)]
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            compression=compression,
            use_dictionary=repeated or False,
            write_statistics=[f.name for f in schema if f.name not in ("body", "message")] or False,
            metadata_collector=self._footers,
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        self._writer.close()
        self.size_bytes: int = self._sink.tell()
        self._sink.close()

    @property
    def footer(self) -> pq.FileMetaData:
        """The footer of the file; available once the file is closed."""
        return self._footers[0]


class LinesFile:
    """Writes one line per row, by the function ``texts``. A null becomes an empty line."""

    def __init__(self, sink: pa.NativeFile, texts: Texts, codec: str | None) -> None:
        self._sink = sink
        self._texts = texts
        self._out = pa.CompressedOutputStream(sink, codec) if codec else sink

    def write(self, rows: pa.Table) -> None:
        for batch in rows.to_batches(ROWS_AT_ONCE):
            lines = pc.fill_null(self._texts(batch), b"")
            ended = pc.binary_join_element_wise(lines, b"", b"\n")
            _, offsets, data = ended.buffers()
            bounds = memoryview(offsets).cast("i")
            self._out.write(data.slice(bounds[0], bounds[len(ended)] - bounds[0]))

    def close(self) -> None:
        self._out.close()
        self._sink.close()


def bodies(rows: pa.RecordBatch) -> pa.Array:
    return rows["body"].cast(pa.binary())


def ending(form: str, compression: str) -> str:
    if form in WITHIN:
        return f".{form}"
    plain = {"text": ".log"}.get(form, f".{form}")
    return plain if compression == "none" else f"{plain}.{ENDINGS[compression]}"


def require_fit(schema: pa.Schema, form: str) -> None:
    """Raise UserError when the format cannot hold rows of this schema."""
    empty = schema.empty_table()
    if form == "text" and "body" not in schema.names:
        raise UserError("files: text writes the column body, which the filters do not keep")
    if form == "json":
        json_text.rows(pa.RecordBatch.from_pylist([], schema))
        return
    try:
        create(pa.BufferOutputStream(), schema, form, "none").write(empty)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"files: {form} cannot hold these columns: {error}") from error


def create(sink: pa.NativeFile, schema: pa.Schema, form: str, compression: str) -> FileWriter:
    codec = None if compression == "none" else compression
    if form == "parquet":
        return ParquetFile(sink, schema, compression)
    if form == "orc":
        return OrcFile(sink, compression)
    if form == "avro":
        return avro_file.AvroFile(sink, schema, compression)
    if form == "csv":
        return CsvFile(sink, schema, codec)
    return LinesFile(sink, json_text.rows if form == "json" else bodies, codec)


def _repeated(field: pa.Field) -> list[str]:
    """Return the Parquet columns of ``field`` that are worth a dictionary."""
    if pa.types.is_map(field.type):
        return [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
    if field.name in UNREPEATED or pa.types.is_nested(field.type):
        return []
    return [field.name]


ORC_CODECS = {"none": "uncompressed", "gzip": "zlib"}


class OrcFile:
    """Writes ORC; times become instants with nanoseconds."""

    def __init__(self, sink: pa.NativeFile, compression: str) -> None:
        self._sink = sink
        self._writer = orc.ORCWriter(sink, compression=ORC_CODECS.get(compression, compression))

    def write(self, rows: pa.Table) -> None:
        """Write a copy of the rows, as pyarrow writes structs of a slice incorrectly."""
        self._writer.write(rows.take(pa.array(np.arange(rows.num_rows))))

    def close(self) -> None:
        self._writer.close()
        self._sink.close()


BODY, EXACT_BODY = "body", "body_base64"
CSV_ROWS_AT_ONCE = 1024


class CsvFile:
    """Writes CSV in UTF-8 with a header. A null becomes nothing, an empty text ``""``."""

    def __init__(self, sink: pa.NativeFile, schema: pa.Schema, codec: str | None) -> None:
        self._sink = sink
        self._out = pa.CompressedOutputStream(sink, codec) if codec else sink
        options = csv.WriteOptions(batch_size=CSV_ROWS_AT_ONCE, quoting_style="needed")
        columns = csv_texts(schema.empty_table()).schema
        self._writer = csv.CSVWriter(self._out, columns, write_options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(csv_texts(rows))

    def close(self) -> None:
        self._writer.close()
        self._out.close()
        self._sink.close()


def csv_texts(rows: pa.Table) -> pa.Table:
    """Return the columns in CSV's types, with binary columns in base64. A binary ``body`` becomes
    text, in which invalid UTF-8 becomes U+FFFD; ``body_base64`` then has the exact bytes."""
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


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema after ``plain``. Raises UserError for colliding column names."""
    flat = plain(schema.empty_table()).schema
    names = [name.lower() for name in flat.names]
    for name in flat.names:
        if names.count(name.lower()) > 1:
            raise UserError(f"files: two columns get the name {name}: rename one with select")
    return flat


def plain(rows: pa.Table) -> pa.Table:
    """Return ``rows`` with struct fields of any depth as columns ``a_b``; maps, lists as JSON."""
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
