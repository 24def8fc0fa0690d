"""From raw frames to events, trusting nothing: the one place that turns one into the other.

What comes out is exactly the range asked for, in order, or an error; never fewer rows in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from flumeng.errors import CorruptError
from flumeng.journal.errors import DataLossError
from flumeng.journal.frame import BadFrameError, decode, identity
from flumeng.journal.schema import EVENT_SCHEMA, READ_SCHEMA

# Every batch costs its readers the same again, and under light load a frame holds a few rows:
# such frames are gathered. A frame of more rows is passed on as it is, a copy would cost more.
GATHER_ROWS = 1024
GATHERED_ROWS = 16_384


def rows(
    frames: Iterable[pa.Buffer], journal: str, start: int, end: int, *, replayed: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the events of [start, end) in READ_SCHEMA from frames that cover them.

    Raises CorruptError for a damaged frame, DataLossError when a seq of the range is missing.
    """
    seq = start
    for batch in _gather(_cut(frames, journal, start, end)):
        yield _with_position(batch, journal, seq, replayed=replayed)
        seq += batch.num_rows


def _cut(
    frames: Iterable[pa.Buffer], journal: str, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Check each frame and yield its part of [start, end); all parts together are the range."""
    owner = identity(journal)
    seq = start
    for frame in frames:
        try:
            header, batch = decode(frame, owner)
        except BadFrameError as error:
            raise CorruptError(f"journal {journal}, at or after seq {seq}: {error}") from error
        if header.end <= seq or seq >= end:
            continue
        if header.first_seq > seq:
            raise DataLossError(f"journal {journal}: seqs {seq} to {header.first_seq} are missing")
        stop = min(header.end, end)
        yield batch.slice(seq - header.first_seq, stop - seq)
        seq = stop
    if seq < end:
        raise DataLossError(f"journal {journal}: seqs {seq} to {end} are missing")


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join runs of small batches."""
    small: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch.num_rows < GATHER_ROWS:
            small.append(batch)
            count += batch.num_rows
        if batch.num_rows >= GATHER_ROWS or count >= GATHERED_ROWS:
            yield from _join(small)
            small, count = [], 0
        if batch.num_rows >= GATHER_ROWS:
            yield batch
    yield from _join(small)


def _join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    table = pa.Table.from_batches(batches, EVENT_SCHEMA)
    return list(table.combine_chunks().to_batches())


def _with_position(
    batch: pa.RecordBatch, journal: str, first_seq: int, *, replayed: bool
) -> pa.RecordBatch:
    count = batch.num_rows
    return pa.RecordBatch.from_arrays(
        [
            *batch.columns,
            pa.repeat(journal, count),
            pa.array(np.arange(first_seq, first_seq + count, dtype=np.int64)),
            pa.repeat(replayed, count),
        ],
        schema=READ_SCHEMA,
    )
