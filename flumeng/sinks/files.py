"""Files in a lake, in directories named after the time of their events; each event visible once.

Executors write straight into the batch's staging directory, one file for each split and directory,
and the driver learns only names and counts. The name of a file is never used again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, the name that all of Spark's users know
from pyspark.sql.types import BinaryType

from flumeng.errors import UserError
from flumeng.filters.lazy_batch import LazyBatch
from flumeng.sinks import BatchTooWideError, Row, Written, formats
from flumeng.sinks.file_store import below, open_store
from flumeng.sinks.formats import FileWriter
from flumeng.sinks.timed_path import TimedPath
from flumeng.spec.sinks import Files

OPEN_FILES = 256
HELD_BYTES = 128 * 1024 * 1024
DONE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("target", pa.string()),
        pa.field("events", pa.int64()),
    ]
)
JSON_OPTIONS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


class FilesSink:
    def __init__(self, options: Files) -> None:
        if options.format != "parquet" and options.compression not in ("none", *formats.ENDINGS):
            able = ", ".join(formats.ENDINGS)
            raise UserError(
                f"files: {options.format} is not compressed with {options.compression}: use {able}"
            )
        self._options = options
        self._path = TimedPath(options.path)

    @property
    def root(self) -> str:
        return self._path.root

    def stage(self, batch: LazyBatch, staging: str) -> LazyBatch:
        if self._options.format == "json":
            batch = batch.sql(self._as_json)
        elif self._options.format == "text" and "body" not in batch.schema.names:
            raise UserError("files: text writes the column body, which select has dropped")
        return batch.arrow(StageFiles(self._options, staging), DONE_SCHEMA)

    def written(self, rows: Sequence[Row]) -> Written:
        if any(row["source"] is None for row in rows):
            raise BatchTooWideError(f"over {OPEN_FILES} different directories in one split")
        files = tuple((row["source"], row["target"]) for row in rows)
        return Written(sum(row["events"] for row in rows), files)

    def _as_json(self, rows: DataFrame) -> DataFrame:
        """The whole event as one JSON text, and what its directory depends on.

        JSON is text: a body that is not UTF-8 has U+FFFD in it, and comes as ``body_base64`` too.
        """
        columns = [F.col(name) for name in rows.columns]
        if "body" in rows.columns and rows.schema["body"].dataType == BinaryType():
            body = F.col("body").cast("string")
            columns[rows.columns.index("body")] = F.make_valid_utf8(body).alias("body")
            exact = F.when(~F.is_valid_utf8(body), F.base64("body"))
            columns.append(exact.alias("body_base64"))
        text = F.to_json(F.struct(*columns), JSON_OPTIONS).alias(formats.LINES["json"])
        return rows.select(*(["ts"] if self._path.timed and "ts" in rows.columns else []), text)


@dataclass(frozen=True)
class StageFiles:
    """Writes a split's events to files in ``staging``, and yields a row for each file.

    One row without a source says that the split has too many directories; nothing of it counts.
    """

    options: Files
    staging: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        path = TimedPath(self.options.path)
        files: dict[str, _StagedFile] = {}
        for batch in batches:
            for directory, rows in path.split(batch):
                if directory not in files:
                    if len(files) == OPEN_FILES:
                        yield _done([(None, None, 0)])
                        return
                    files[directory] = _StagedFile(self.options, self.staging, directory, rows)
                files[directory].write(rows)
            if sum(file.writer.held_bytes for file in files.values()) > HELD_BYTES:
                for file in files.values():
                    file.writer.flush()
        done = [file.finish() for file in files.values()]
        if done:
            store, staging = open_store(self.staging)
            store.sync(staging)
        yield _done(done)


class _StagedFile:
    def __init__(self, options: Files, staging: str, directory: str, first: pa.RecordBatch) -> None:
        name = f"part-{uuid.uuid4().hex}{formats.ending(options.format, options.compression)}"
        self._source, self._target = below(staging, name), below(directory, name)
        self._files, self._path = open_store(self._source)
        self._events = 0
        self.writer: FileWriter = formats.create(
            self._files.open_output(self._path), first.schema, options.format, options.compression
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self.writer.write(rows)
        self._events += rows.num_rows

    def finish(self) -> tuple[str, str, int]:
        """Make the file durable."""
        self.writer.close()
        self._files.sync(self._path)
        return self._source, self._target, self._events


def _done(files: Sequence[tuple[str | None, str | None, int]]) -> pa.RecordBatch:
    rows = [dict(zip(DONE_SCHEMA.names, file, strict=True)) for file in files]
    return pa.RecordBatch.from_pylist(rows, DONE_SCHEMA)
