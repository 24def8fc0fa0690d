"""One dead letter file, Parquet or JSON. Rows are numbered; absent or mistyped columns are null."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flumeng.connectors.api.dead_letter_columns import ADDED
from flumeng.connectors.dead_letters.directory import DeadLetterDirectory, DeadLetterFile
from flumeng.connectors.dead_letters.selection import Selection
from flumeng.connectors.files import formats
from flumeng.events import json_text
from flumeng.events.byte_column import ByteColumn
from flumeng.filters.formats import json_values
from flumeng.filters.formats.json import MALFORMED, each_object
from flumeng.platform.errors import CorruptError

ROWS_AT_ONCE = 20_000
BLOCK_BYTES = 4 * 1024 * 1024
WHOLE_BYTES = 1024 * 1024
"""A Parquet file up to this size is read with one request."""
CODECS = {".zst": "zstd", ".gz": "gzip"}
REASON, TIME = "dead_reason", "dead_time"

B = TypeVar("B", bound=Any)
Keep = Callable[[pa.RecordBatch], pa.BooleanArray]
"""Function that returns a mask of the rows to keep, from rows with the columns ADDED."""


class Letters(Protocol):
    """The rows of one dead letter file. Methods raise CorruptError (also if the rows are no dead
    letters), GoneError, UserError, UnavailableError."""

    def read(
        self, schema: pa.Schema, start: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows [start, end), in ``schema``."""

    def dead(self, selection: Selection) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield first row numbers, and batches of the columns ADDED; may omit unselected rows."""

    def shown(self, rows: Collection[int]) -> dict[int, bytes]:
        """Return these rows as JSON, by row number."""

    def rewrite(self, output: pa.NativeFile, keep: Keep) -> None:
        """Write the rows to keep into ``output`` in the same format, and close it."""


def open_dead_letters(directory: DeadLetterDirectory, file: DeadLetterFile) -> Letters:
    kind = ParquetDeadLetters if file.path.endswith(".parquet") else JsonDeadLetters
    return kind(directory, file)


class ParquetDeadLetters:
    def __init__(self, directory: DeadLetterDirectory, file: DeadLetterFile) -> None:
        self._directory = directory
        self._path = file.path
        self._small = file.bytes <= WHOLE_BYTES

    def read(
        self, schema: pa.Schema, start: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        for _, batch in self._rows(schema, start, end):
            yield batch

    def dead(self, selection: Selection) -> Iterator[tuple[int, pa.RecordBatch]]:
        return self._rows(
            ADDED, 0, None, lambda group: selection.timed and _misses(selection, group)
        )

    def _rows(
        self,
        schema: pa.Schema,
        start: int,
        end: int | None,
        skips: Callable[[pq.RowGroupMetaData], bool] = lambda _: False,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the first row's number and rows [start, end), without row groups of ``skips``."""
        with self._directory.errors(self._path), self._open() as file:
            there = [name for name in schema.names if name in file.schema_arrow.names]
            row = 0
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                last = row + group.num_rows
                if last <= start or (end is not None and row >= end) or skips(group):
                    row = last
                    continue
                for batch in file.iter_batches(
                    ROWS_AT_ONCE, row_groups=[number], columns=there, use_threads=False
                ):
                    from_ = max(start - row, 0)
                    to = batch.num_rows if end is None else min(end - row, batch.num_rows)
                    if from_ < to:
                        yield row + from_, _conformed(batch.slice(from_, to - from_), schema)
                    row += batch.num_rows

    def shown(self, rows: Collection[int]) -> dict[int, bytes]:
        with self._directory.errors(self._path), self._open() as file:
            schema = file.schema_arrow
        lines: dict[int, bytes] = {}
        for batch, there in _with_rows(self.read(schema, min(rows), max(rows) + 1), rows):
            texts = json_text.rows(batch.take(pa.array([index for index, _ in there])))
            lines |= zip((row for _, row in there), texts.to_pylist(), strict=True)
        return lines

    def rewrite(self, output: pa.NativeFile, keep: Keep) -> None:
        with self._directory.errors(self._path), self._open() as file:
            group = file.metadata.row_group(0)
            compression = group.column(0).compression.lower().replace("uncompressed", "none")
            writer = formats.create(output, file.schema_arrow, "parquet", compression)
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number)
                (all_,) = rows.combine_chunks().to_batches()
                left = rows.filter(keep(_conformed(all_, ADDED)))
                if left.num_rows:
                    writer.write(left)
            writer.close()

    def _open(self) -> pq.ParquetFile:
        if self._small:
            file = pq.ParquetFile(pa.BufferReader(self._whole))
        else:
            file = pq.ParquetFile(self._path, filesystem=self._directory.store.files)
        if REASON not in file.schema_arrow.names:
            file.close()
            raise CorruptError(f"{self._path}: the rows of the file are not dead letters")
        return file

    @cached_property
    def _whole(self) -> pa.Buffer:
        with self._directory.store.files.open_input_file(self._path) as stream:
            return stream.read_buffer()


class JsonDeadLetters:
    def __init__(self, directory: DeadLetterDirectory, file: DeadLetterFile) -> None:
        self._directory = directory
        self._path = file.path
        self._codec = CODECS.get(self._path[self._path.rfind(".") :])

    def read(
        self, schema: pa.Schema, start: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        for lines in self._lines(start, end):
            yield self._parsed(lines, schema)

    def dead(self, selection: Selection) -> Iterator[tuple[int, pa.RecordBatch]]:
        del selection  # times are known only after reading
        first = 0
        for batch in self.read(ADDED):
            yield first, batch
            first += batch.num_rows

    def shown(self, rows: Collection[int]) -> dict[int, bytes]:
        batches = _with_rows(self._lines(min(rows), max(rows) + 1), rows)
        return {row: lines[index].as_py() for lines, there in batches for index, row in there}

    def rewrite(self, output: pa.NativeFile, keep: Keep) -> None:
        out = pa.CompressedOutputStream(output, self._codec) if self._codec else output
        for lines in self._lines(0, None):
            for line in lines.filter(keep(self._parsed(lines, ADDED))).to_pylist():
                out.write(line + b"\n")
        out.close()
        output.close()

    def _lines(self, start: int, end: int | None) -> Iterator[pa.BinaryArray]:
        row, rest = 0, b""
        with self._directory.errors(self._path), self._open() as stream:
            while (end is None or row < end) and (block := stream.read(BLOCK_BYTES)):
                *lines, rest = (rest + block).split(b"\n")
                from_ = max(start - row, 0)
                to = len(lines) if end is None else min(end - row, len(lines))
                for first in range(from_, to, ROWS_AT_ONCE):
                    yield pa.array(lines[first : min(first + ROWS_AT_ONCE, to)], pa.binary())
                row += len(lines)
        if rest and (end is None or row < end):
            raise CorruptError(f"{self._path}: the last line is incomplete")

    def _open(self) -> pa.NativeFile:
        return self._directory.store.files.open_input_stream(self._path, compression=self._codec)

    def _parsed(self, lines: pa.BinaryArray, schema: pa.Schema) -> pa.RecordBatch:
        exact = [json_text.EXACT_BODY] if json_text.BODY in schema.names else []
        names = [*schema.names, *exact]
        with self._directory.errors(self._path):
            values, reasons = each_object(lines, lambda texts: json_values.objects(texts, names))
        if pc.any(pc.equal(reasons, MALFORMED)).as_py():
            raise CorruptError(f"{self._path}: a line of the file is not JSON")
        raws = dict(zip(names, values, strict=True))
        columns = [_column(raws, field) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        if REASON in schema.names and batch[REASON].null_count == batch.num_rows:
            raise CorruptError(f"{self._path}: the rows of the file are not dead letters")
        return batch


def _with_rows(
    batches: Iterator[B], rows: Collection[int]
) -> Iterator[tuple[B, list[tuple[int, int]]]]:
    """Yield the batches that contain some of ``rows``, with these rows' indices in the batch and
    their numbers. The first batch begins with the lowest of ``rows``."""
    left = sorted(rows)
    first = left[0]
    for batch in batches:
        there = [row for row in left if row < first + len(batch)]
        if there:
            yield batch, [(row - first, row) for row in there]
        left = left[len(there) :]
        first += len(batch)


def _column(raws: dict[str, ByteColumn], field: pa.Field) -> pa.Array:
    if field.name != json_text.BODY:
        return json_values.column(raws[field.name], field.type)[0]
    text, _ = json_values.column(raws[json_text.BODY], pa.string())
    exact, _ = json_values.column(raws[json_text.EXACT_BODY], pa.binary())
    return pc.coalesce(exact, text.cast(pa.binary()))


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            try:
                columns.append(batch[field.name].cast(field.type))
                continue
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                pass  # not the type of event columns
        columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _misses(selection: Selection, group: pq.RowGroupMetaData) -> bool:
    """Return whether the file's footer shows that no dead letter of the group is selected."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == TIME:
            bounds = column.statistics
            if bounds is None or not bounds.has_min_max:
                return False
            first, last = (
                pa.scalar(bound, ADDED.field(TIME).type).cast(pa.int64()).as_py()
                for bound in (bounds.min, bounds.max)
            )
            return selection.misses(first, last)
    return False
