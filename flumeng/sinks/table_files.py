"""Parquet files for a table: each of one partition, written where they stay, and unseen until a
commit of the table names them.

The name of a file is never used again. A file that no commit names is an orphan: the table's own
clean-up removes it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flumeng.errors import UnavailableError
from flumeng.filters.receipt_bound import refused
from flumeng.runtime.scrubbing import Secret
from flumeng.sinks import BatchTooWideError, Row, chunks, partitions
from flumeng.sinks.dead_letters import Refuse
from flumeng.sinks.file_store import FileStore, open_store
from flumeng.sinks.formats import ParquetFile
from flumeng.sinks.partitions import Partition, Values
from flumeng.spec.patterns import split_query

OPEN_FILES = 256
"""At once, of a split; the least recently used one is closed when there is another to open."""
MOST_FILES = 4096
"""Of a split: a column of which nearly every value is different partitions no table."""
GATHERED_BYTES = 64 * 1024 * 1024
"""So much is sorted by partition, and written as a row group in each, at once."""
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
    """Where files of a table are, and what they are. ``directory`` is a URI; ``schema`` has columns
    of the events, in the types that the table has for them. ``stored`` are those that files hold:
    of some tables not the columns that they are partitioned by. ``secrets`` are what references in
    the directory stand for: the host that writes may not have them."""

    directory: str
    schema: pa.Schema
    partitions: tuple[Partition, ...] = ()
    stored: tuple[str, ...] = ()
    compression: str = "zstd"
    secrets: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFile:
    """A file that is durable; ``path`` is relative to the directory of its layout, and ``uri`` says
    no more of its store than the table does."""

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
    """Writes a split's events to files of ``layout``, and yields a row for each of them.

    One row without a path says that the split makes too many files; nothing of it counts.
    """

    layout: Layout

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        store, place = open_store(self.layout.directory, self.layout.secrets.__getitem__)
        files = _OpenFiles(self.layout, store, place)
        for events in chunks.tables(self._bounded(batches, refuse), GATHERED_BYTES):
            try:
                files.write(_cast(events, self.layout.schema))
            except OSError as error:
                raise store.explained(error) from error
            if len(files) > MOST_FILES:
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
        """Those without a text that is too long to partition by."""
        for batch in batches:
            long = partitions.too_long(batch, self.layout.partitions)
            if long is None:
                yield batch
                continue
            reason = f"a column of partition_by has over {partitions.LONGEST_BYTES} bytes"
            refuse(batch.filter(long), [reason] * pc.sum(long).as_py())
            yield batch.filter(pc.invert(long))


@dataclass(frozen=True)
class Unreachable:
    """Stands for writing files of a table that could not be looked up: ``message`` says why."""

    message: str

    def __call__(
        self, _batches: Iterator[pa.RecordBatch], _refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        raise UnavailableError(self.message)


def read(rows: Sequence[Row]) -> list[TableFile]:
    """What the stages of all splits have written. Raises BatchTooWideError."""
    if any(row["path"] is None for row in rows):
        raise BatchTooWideError(f"over {MOST_FILES} files of one split: partition_by is too fine")
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


class _OpenFiles:
    """The files of a split: for each partition one, or several when there are many partitions."""

    def __init__(self, layout: Layout, store: FileStore, place: str) -> None:
        self._layout = layout
        self._store = store
        self._place = place
        self._open: dict[Values, _OpenFile] = {}
        """The least recently used first."""
        self._done: list[_OpenFile] = []

    def __len__(self) -> int:
        return len(self._open) + len(self._done)

    def write(self, events: pa.Table) -> None:
        """Into the files that are open first, so that as few as possible are closed."""
        parts = partitions.split(events, self._layout.partitions)
        for values, rows in sorted(parts, key=lambda part: part[0] not in self._open):
            if len(self) > MOST_FILES:
                return
            file = self._open.pop(values, None)
            if file is None:
                if len(self._open) == OPEN_FILES:
                    self._close(next(iter(self._open)))
                file = _OpenFile(self._layout, self._store, self._place, values)
            file.write(rows)
            self._open[values] = file

    def finish(self) -> list[_OpenFile]:
        """Make all files durable."""
        for values in list(self._open):
            self._close(values)
        for directory in {file.directory for file in self._done}:
            self._store.sync(directory)
        return self._done

    def _close(self, values: Values) -> None:
        file = self._open.pop(values)
        file.close()
        self._done.append(file)


class _OpenFile:
    def __init__(self, layout: Layout, store: FileStore, place: str, values: Values) -> None:
        named = zip(layout.partitions, values, strict=True)
        directories = [_directory(partition, value) for partition, value in named]
        names = [partition.name for partition in layout.partitions]
        self._values = dict(zip(names, values, strict=True))
        self._table = layout.directory
        self._stored = list(layout.stored)
        self._path = "/".join([*directories, f"part-{uuid.uuid4().hex}.parquet"])
        self.directory = "/".join([place, *directories])
        self._store = store
        self._store.make_directory(self.directory)
        self._place = f"{place}/{self._path}"
        self._events = self._refused = 0
        schema = pa.schema([layout.schema.field(name) for name in layout.stored])
        self._writer = ParquetFile(self._store.open_output(self._place), schema, layout.compression)

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows.select(self._stored))
        self._events += rows.num_rows
        self._refused += refused(rows)

    def close(self) -> None:
        """Make the file durable."""
        self._writer.close()
        self._store.sync(self._place)

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
    """For the eye only: the table itself tells which partition a file is of."""
    shown = "__HIVE_DEFAULT_PARTITION__" if value is None else value[:_NAME_CHARACTERS]
    return "=".join(_UNSAFE.sub("_", text) for text in (partition.name, shown))


def _cast(events: pa.Table, schema: pa.Schema) -> pa.Table:
    return events if events.schema == schema else events.select(schema.names).cast(schema)
