"""One file in one format: takes tables of events, and is complete when it is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flumeng.connectors.files import avro_file, csv_file
from flumeng.connectors.files.orc_file import OrcFile
from flumeng.events import json_text
from flumeng.platform.errors import UserError

UNREPEATED = frozenset({"body", "message", "seq", "ts"})
ENDINGS = {"zstd": "zst", "gzip": "gz"}
WITHIN = ("parquet", "orc", "avro")
"""Formats whose compression is inside, so that names do not tell it."""
ROWS_AT_ONCE = 20_000

Texts = Callable[[pa.RecordBatch], pa.Array]


class FileWriter(Protocol):
    def write(self, rows: pa.Table) -> None: ...

    def close(self) -> None:
        """Write the file's end; nothing is written after."""


class ParquetFile:
    """All columns as they are, a row group for each ``write``. Dictionaries only where values
    repeat."""

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
        """What the file says of itself, once it is closed."""
        return self._footers[0]


class LinesFile:
    """A line for each row: the bytes that ``texts`` makes of it and a newline. A null is an empty
    line."""

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
    """The end of the files' names."""
    if form in WITHIN:
        return f".{form}"
    plain = {"text": ".log"}.get(form, f".{form}")
    return plain if compression == "none" else f"{plain}.{ENDINGS[compression]}"


def require_fit(schema: pa.Schema, form: str) -> None:
    """Raises UserError when files of that format cannot hold such rows."""
    empty = schema.empty_table()
    if form == "text" and "body" not in schema.names:
        raise UserError("files: text writes the column body, which select has dropped")
    if form == "json":
        json_text.rows(pa.RecordBatch.from_pylist([], schema))
        return
    try:
        create(pa.BufferOutputStream(), schema, form, "none").write(empty)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"files: {form} cannot hold these columns: {error}") from error


def create(sink: pa.NativeFile, schema: pa.Schema, form: str, compression: str) -> FileWriter:
    """A file that takes tables of ``schema``."""
    codec = None if compression == "none" else compression
    if form == "parquet":
        return ParquetFile(sink, schema, compression)
    if form == "orc":
        return OrcFile(sink, compression)
    if form == "avro":
        return avro_file.AvroFile(sink, schema, compression)
    if form == "csv":
        return csv_file.CsvFile(sink, schema, codec)
    return LinesFile(sink, json_text.rows if form == "json" else bodies, codec)


def _repeated(field: pa.Field) -> list[str]:
    """Names of the Parquet columns of ``field`` that are worth a dictionary."""
    if pa.types.is_map(field.type):
        return [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
    if field.name in UNREPEATED or pa.types.is_nested(field.type):
        return []
    return [field.name]
