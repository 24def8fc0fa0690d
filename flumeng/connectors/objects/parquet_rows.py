"""Parquet rows as JSON, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from flumeng.connectors.objects.content import Content
from flumeng.connectors.objects.formats import Rows, chosen, texts_of
from flumeng.connectors.objects.options import ObjectsSource

BATCH_BYTES = 4 << 20


def parts(content: Content, source: ObjectsSource, start: int, end: int) -> Iterator[Rows]:
    """Yield rows [start, end). Raises CorruptError after the last readable batch of rows."""
    with content.explained():
        file = pq.ParquetFile(content.file(), pre_buffer=True, coerce_int96_timestamp_unit="us")
        columns = source.columns and chosen(source, file.schema_arrow.names)
        first = 0
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            last = first + group.num_rows
            if last > start and first < end:
                each = max(1, group.num_rows * BATCH_BYTES // max(group.total_byte_size, 1))
                batches = file.iter_batches(min(each, group.num_rows), [number], columns=columns)
                yield from _between(batches, first, start, end)
            first = last


def _between(batches: Iterator[pa.RecordBatch], row: int, start: int, end: int) -> Iterator[Rows]:
    for batch in batches:
        rows = batch[max(start - row, 0) : max(end - row, 0)]
        position = max(start, row)
        for bodies in texts_of(rows):
            yield Rows(position, bodies)
            position += len(bodies)
        row += batch.num_rows
        if row >= end:
            return
