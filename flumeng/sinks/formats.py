"""One file in one format: takes record batches, and is complete when it is closed.

A Parquet file grows by row groups of about 64 MiB of events, so that memory stays bounded and a
reader can skip; lines are written as they come.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 64 * 1024 * 1024
UNREPEATED = frozenset({"body", "message", "seq", "ts"})
LINES = {"json": "json", "text": "body"}
ENDINGS = {"zstd": "zst", "gzip": "gz"}


class FileWriter(Protocol):
    """``held_bytes`` is what was taken and is not written yet."""

    held_bytes: int

    def write(self, batch: pa.RecordBatch) -> None: ...

    def flush(self) -> None:
        """Write what is held."""

    def close(self) -> None:
        """Write what is held and the file's end; nothing is written after."""


class ParquetFile:
    """All columns as they are. Dictionaries only where values repeat."""

    def __init__(
        self,
        sink: pa.NativeFile,
        schema: pa.Schema,
        compression: str,
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        self._sink = sink
        self._row_group_bytes = row_group_bytes
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        repeated = [name for field in schema for name in _repeated(field)]
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            compression=compression,
            use_dictionary=repeated or False,
            write_statistics=[f.name for f in schema if f.name not in ("body", "message")] or False,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes >= self._row_group_bytes:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
            self._held = []
            self.held_bytes = 0

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._sink.close()


class LinesFile:
    """One column, a line each: its bytes untouched and a newline. A null is an empty line."""

    held_bytes = 0

    def __init__(self, sink: pa.NativeFile, column: str, codec: str | None) -> None:
        self._sink = sink
        self._column = column
        self._out = pa.CompressedOutputStream(sink, codec) if codec else sink

    def write(self, batch: pa.RecordBatch) -> None:
        lines = pc.fill_null(batch[self._column].cast(pa.binary()), b"")
        ended = pc.binary_join_element_wise(lines, b"", b"\n")
        _, offsets, data = ended.buffers()
        bounds = memoryview(offsets).cast("i")
        self._out.write(data.slice(bounds[0], bounds[len(ended)] - bounds[0]))

    def flush(self) -> None:
        """Nothing is held."""

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
    """A file that takes batches of ``schema``; ``json`` and ``text`` write the column LINES."""
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
