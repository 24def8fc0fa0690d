"""One file in one format: takes tables of events, and is complete when it is closed."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

UNREPEATED = frozenset({"body", "message", "seq", "ts"})
LINES = {"json": "json", "text": "body"}
ENDINGS = {"zstd": "zst", "gzip": "gz"}


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
    """One column, a line each: its bytes untouched and a newline. A null is an empty line."""

    def __init__(self, sink: pa.NativeFile, column: str, codec: str | None) -> None:
        self._sink = sink
        self._column = column
        self._out = pa.CompressedOutputStream(sink, codec) if codec else sink

    def write(self, rows: pa.Table) -> None:
        for chunk in rows[self._column].chunks:
            lines = pc.fill_null(chunk.cast(pa.binary()), b"")
            ended = pc.binary_join_element_wise(lines, b"", b"\n")
            _, offsets, data = ended.buffers()
            bounds = memoryview(offsets).cast("i")
            self._out.write(data.slice(bounds[0], bounds[len(ended)] - bounds[0]))

    def close(self) -> None:
        self._out.close()
        self._sink.close()


def ending(form: str, compression: str) -> str:
    """The end of the files' names."""
    if form == "parquet":
        return ".parquet"
    plain = ".json" if form == "json" else ".log"
    return plain if compression == "none" else f"{plain}.{ENDINGS[compression]}"


def create(sink: pa.NativeFile, schema: pa.Schema, form: str, compression: str) -> FileWriter:
    """A file that takes tables of ``schema``; ``json`` and ``text`` write the column LINES."""
    if form == "parquet":
        return ParquetFile(sink, schema, compression)
    return LinesFile(sink, LINES[form], None if compression == "none" else compression)


def _repeated(field: pa.Field) -> list[str]:
    """Names of the Parquet columns of ``field`` that are worth a dictionary."""
    if pa.types.is_map(field.type):
        return [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
    if field.name in UNREPEATED or pa.types.is_nested(field.type):
        return []
    return [field.name]
