"""Files sink: files in a lake, each event visible once. Executors write uniquely named files, one
or more per split and directory, into the batch's staging, and report names and counts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec

import pyarrow as pa

from flumeng.connectors.api import chunks
from flumeng.connectors.api.sink import Attempt, BatchTooWideError, Row, TaskRevision, Written
from flumeng.connectors.files import formats
from flumeng.connectors.files.formats import FileWriter, plain, plain_schema
from flumeng.connectors.files.open_files import GATHERED_BYTES, OpenFiles
from flumeng.connectors.files.options import Files
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.pattern_path import PatternPath
from flumeng.filters.refused_times import refused
from flumeng.platform import secrets
from flumeng.platform.errors import UserError
from flumeng.platform.file_store import FileStore, below, open_store
from flumeng.platform.scrubbing import Secret

MARKER = "_SUCCESS"
DONE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("target", pa.string()),
        pa.field("events", pa.int64()),
        pa.field("refused", pa.int64()),
    ]
)


class FilesSink:
    identified = writes_at_once = False

    def __init__(self, options: Files, _task: TaskRevision) -> None:
        if options.format == "avro" and find_spec("fastavro") is None:
            raise UserError("files: install flumeng[avro] to write Avro")
        self._options = options
        self._path = PatternPath(options.location)
        self._secrets = secrets.of(options.credentials)

    @property
    def roots(self) -> tuple[str, ...]:
        return (self._path.root,)

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        formats.require_fit(self._columns(batch.schema), self._options.format)
        staging = attempt.staging.get(self._path.root, "")
        stage = StageFiles(self._options, staging, self._secrets, attempt.makes_staging)
        return batch.arrow(stage, DONE_SCHEMA)

    def _columns(self, schema: pa.Schema) -> pa.Schema:
        flat = self._options.columns == "flat"
        return plain_schema(schema) if flat else schema

    def written(self, rows: Sequence[Row]) -> Written:
        if any(row["source"] is None for row in rows):
            raise BatchTooWideError(
                f"files: over {OpenFiles.most_files} files in a split of a batch"
            )
        files = tuple({row["target"]: (row["source"], row["target"]) for row in rows}.values())
        events, far = (sum(row[name] for row in rows) for name in ("events", "refused"))
        return Written(events, files, far)


@dataclass(frozen=True)
class StageFiles:
    """Stage that writes a split's events to files in ``staging``, and yields one row per file or
    marker. A row without a source reports too many files. ``secrets`` are the location's, by
    reference, as executors may be unable to resolve them."""

    options: Files
    staging: str
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    makes_staging: bool = False
    gathered_bytes: int = GATHERED_BYTES
    open_files: Callable[[], OpenFiles[str, _StagedFile]] = OpenFiles

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store, path = open_store(self.staging, self.secrets.__getitem__)
        if self.makes_staging:
            store.make_directory(path)
        files = _StagedFiles(self, store, path)
        for events in chunks.tables(batches, self.gathered_bytes):
            try:
                files.write(events)
            except OSError as error:
                raise store.explained(error) from error
            if files.open.too_many:
                yield _done([(None, None, 0, 0)])
                return
        try:
            yield _done(files.finish())
        except OSError as error:
            raise store.explained(error) from error


class _StagedFiles:
    """The staged files of a split, one or several per target directory."""

    def __init__(self, stage: StageFiles, store: FileStore, path: str) -> None:
        self._options = stage.options
        self._staging = stage.staging
        self._store = store
        self._directory = path
        self._path = PatternPath(stage.options.location)
        self.open = stage.open_files()
        self._targets: set[str] = set()

    def write(self, events: pa.Table) -> None:
        for directory, part in self.open.in_order(self._path.split(events)):
            if self.open.too_many:
                return
            rows = plain(part) if self._options.columns == "flat" else part
            self._targets.add(directory)
            file = self.open.get(directory, partial(self._new, directory, rows.schema))
            file.write(rows, refused(part))
            if file.output.tell() >= self._options.roll.bytes:
                self.open.close(directory)

    def finish(self) -> list[tuple[str, str, int, int]]:
        files = self.open.close_all()
        rows = [(file.source, file.target, file.events, file.refused) for file in files]
        if self._options.marker:
            rows += [self._mark(directory) for directory in self._targets]
        if rows:
            self._store.sync(self._directory)
        return rows

    def _mark(self, directory: str) -> tuple[str, str, int, int]:
        name = f"{MARKER}-{uuid.uuid4().hex}"
        path = f"{self._directory}/{name}"
        self._store.open_output(path).close()
        self._store.sync(path)
        return below(self._staging, name), below(directory, MARKER), 0, 0

    def _new(self, directory: str, schema: pa.Schema) -> _StagedFile:
        form, compression = self._options.format, self._options.compression
        name = f"part-{uuid.uuid4().hex}{formats.ending(form, compression)}"
        path = f"{self._directory}/{name}"
        output = self._store.open_output(path)
        writer = formats.create(output, schema, form, compression)
        source, target = below(self._staging, name), below(directory, name)
        return _StagedFile(source, target, output, writer, self._store, path)


@dataclass
class _StagedFile:
    source: str
    target: str
    output: pa.NativeFile
    writer: FileWriter
    store: FileStore
    path: str
    events: int = 0
    refused: int = 0

    def write(self, rows: pa.Table, refused: int) -> None:
        self.writer.write(rows)
        self.events += rows.num_rows
        self.refused += refused

    def close(self) -> None:
        self.writer.close()
        self.store.sync(self.path)


def _done(files: Sequence[tuple[str | None, str | None, int, int]]) -> pa.RecordBatch:
    rows = [dict(zip(DONE_SCHEMA.names, file, strict=True)) for file in files]
    return pa.RecordBatch.from_pylist(rows, DONE_SCHEMA)
