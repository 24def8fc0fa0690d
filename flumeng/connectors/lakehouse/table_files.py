"""Parquet files of a table, of one partition each, invisible until a commit. Names are never
reused; files without a commit are orphans, left to the table's own clean-up."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flumeng.connectors.api import chunks
from flumeng.connectors.api.dead_letters import Refuse
from flumeng.connectors.api.sink import BatchTooWideError, Row
from flumeng.connectors.files.formats import ParquetFile
from flumeng.connectors.files.open_files import GATHERED_BYTES, OpenFiles
from flumeng.connectors.lakehouse import partitions
from flumeng.connectors.lakehouse.partitions import Partition, Values
from flumeng.filters.refused_times import refused
from flumeng.platform.errors import UnavailableError
from flumeng.platform.file_store import FileStore, open_store
from flumeng.platform.options.patterns import split_query
from flumeng.platform.scrubbing import Secret

WRITTEN_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("uri", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("events", pa.int64()),
        pa.field("refused", pa.int64()),
        pa.field("partition", pa.string()),
        pa.field("footer", pa.binary()),
    ]
)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NAME_CHARACTERS = 64


@dataclass(frozen=True)
class Layout:
    """How a table's files are written. ``schema``: event columns in the table's types; ``stored``:
    columns in the files. ``secrets``: the directory's, as executors may be unable to get them."""

    directory: str
    schema: pa.Schema
    partitions: tuple[Partition, ...] = ()
    stored: tuple[str, ...] = ()
    compression: str = "zstd"
    secrets: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFile:
    """A durable file. ``path`` is relative to the layout's directory, ``uri`` has no secrets."""

    path: str
    uri: str
    size_bytes: int
    events: int
    partition: dict[str, str | None]
    footer: pq.FileMetaData

    @property
    def schema(self) -> pa.Schema:
        return self.footer.schema.to_arrow_schema()


@dataclass(frozen=True)
class WriteFiles:
    """Stage that writes a split to files, and yields a row for each; only a row without a path when
    there are too many files."""

    layout: Layout
    gathered_bytes: int = GATHERED_BYTES
    open_files: Callable[[], OpenFiles[Values, _OpenFile]] = OpenFiles

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        store, directory = open_store(self.layout.directory, self.layout.secrets.__getitem__)
        files = _Files(self, store, directory)
        for events in chunks.tables(self._bounded(batches, refuse), self.gathered_bytes):
            try:
                files.write(_cast(events, self.layout.schema))
            except OSError as error:
                raise store.explained(error) from error
            if files.open.too_many:
                yield pa.RecordBatch.from_pylist([{}], WRITTEN_SCHEMA)
                return
        try:
            rows = [file.row() for file in files.finish()]
        except OSError as error:
            raise store.explained(error) from error
        yield pa.RecordBatch.from_pylist(rows, WRITTEN_SCHEMA)

    def _bounded(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events, and refuse those whose text is too long to partition by."""
        for batch in batches:
            long = partitions.too_long(batch, self.layout.partitions)
            if long is None:
                yield batch
                continue
            reason = f"a partition_by column has more than {partitions.LONGEST_BYTES} bytes"
            refuse(batch.filter(long), [reason] * pc.sum(long).as_py())
            yield batch.filter(pc.invert(long))


@dataclass(frozen=True)
class Unreachable:
    """Stage that raises UnavailableError, used while the table is unreachable."""

    message: str

    def __call__(
        self, _batches: Iterator[pa.RecordBatch], _refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        raise UnavailableError(self.message)


def read(rows: Sequence[Row]) -> list[TableFile]:
    """Return the files written by all splits. Raises BatchTooWideError for too many files."""
    if any(row["path"] is None for row in rows):
        many = f"over {OpenFiles.most_files} files in a split of a batch"
        raise BatchTooWideError(f"{many}: partition_by is too fine")
    return [
        TableFile(
            row["path"],
            row["uri"],
            row["size_bytes"],
            row["events"],
            json.loads(row["partition"]),
            pq.read_metadata(pa.BufferReader(row["footer"])),
        )
        for row in rows
    ]


class _Files:
    """A split's open files, by partition values."""

    def __init__(self, stage: WriteFiles, store: FileStore, directory: str) -> None:
        self._layout = stage.layout
        self._store = store
        self._directory = directory
        self.open = stage.open_files()

    def write(self, events: pa.Table) -> None:
        parts = partitions.split(events, self._layout.partitions)
        for values, rows in self.open.in_order(parts):
            if self.open.too_many:
                return
            self.open.get(values, partial(self._new, values)).write(rows)

    def finish(self) -> list[_OpenFile]:
        files = self.open.close_all()
        for directory in {file.directory for file in files}:
            self._store.sync(directory)
        return files

    def _new(self, values: Values) -> _OpenFile:
        return _OpenFile(self._layout, self._store, self._directory, values)


class _OpenFile:
    def __init__(self, layout: Layout, store: FileStore, directory: str, values: Values) -> None:
        named = zip(layout.partitions, values, strict=True)
        directories = [_directory(partition, value) for partition, value in named]
        names = [partition.name for partition in layout.partitions]
        self._values = dict(zip(names, values, strict=True))
        self._table = layout.directory
        self._stored = list(layout.stored)
        self._path = "/".join([*directories, f"part-{uuid.uuid4().hex}.parquet"])
        self.directory = "/".join([directory, *directories])
        self._store = store
        self._store.make_directory(self.directory)
        self._target = f"{directory}/{self._path}"
        self._events = self._refused = 0
        schema = pa.schema([layout.schema.field(name) for name in layout.stored])
        self._writer = ParquetFile(
            self._store.open_output(self._target), schema, layout.compression
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows.select(self._stored))
        self._events += rows.num_rows
        self._refused += refused(rows)

    def close(self) -> None:
        self._writer.close()
        self._store.sync(self._target)

    def row(self) -> Row:
        footer = pa.BufferOutputStream()
        self._writer.footer.write_metadata_file(footer)
        return {
            "path": self._path,
            "uri": f"{split_query(self._table)[0].rstrip('/')}/{self._path}",
            "size_bytes": self._writer.size_bytes,
            "events": self._events,
            "refused": self._refused,
            "partition": json.dumps(self._values),
            "footer": footer.getvalue().to_pybytes(),
        }


def _directory(partition: Partition, value: str | None) -> str:
    """Return a directory name for people; the table itself records each file's partition."""
    shown = "__HIVE_DEFAULT_PARTITION__" if value is None else value[:_NAME_CHARACTERS]
    return "=".join(_UNSAFE.sub("_", text) for text in (partition.name, shown))


def _cast(events: pa.Table, schema: pa.Schema) -> pa.Table:
    return events if events.schema == schema else events.select(schema.names).cast(schema)
