"""Decodes and verifies raw frames into exactly the requested events, in order, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from flumeng.events.schema import EVENT_SCHEMA, READ_SCHEMA
from flumeng.journal.log.errors import DataLossError
from flumeng.journal.log.frame import BadFrameError, events, identity, verify
from flumeng.platform.errors import CorruptError, FlumengError

# Each batch has a fixed cost for its readers, and under light load a frame holds a few rows: such
# frames are merged. Larger frames are passed on as they are, since a copy would cost more.
GATHER_ROWS = 1024
GATHERED_ROWS = 16_384
GATHERED_BYTES = 4 << 20

Part = tuple[int, pa.RecordBatch]


def rows(
    frames: Iterable[pa.Buffer], journal: str, start: int, end: int, *, replayed: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the events of [start, end) in READ_SCHEMA, without those marked as lost. Raises
    CorruptError and, for a missing seq, DataLossError, after yielding all preceding events."""
    for seq, batch in _gather(cut(frames, journal, start, end)):
        yield _with_position(batch, journal, seq, replayed=replayed)


def cut(frames: Iterable[pa.Buffer], journal: str, start: int, end: int) -> Iterator[Part]:
    """Yield verified batches of the events of [start, end) in EVENT_SCHEMA, each with its first
    seq. Raises as ``rows``."""
    owner = identity(journal)
    seq = start
    for frame in frames:
        try:
            header = verify(frame, owner)
            batch = None if header.lost else events(frame, header)
        except BadFrameError as error:
            raise CorruptError(f"journal {journal}, at or after seq {seq}: {error}") from error
        if header.end <= seq or seq >= end:
            continue
        if header.first_seq > seq:
            raise DataLossError(f"journal {journal}: seqs {seq} to {header.first_seq} are missing")
        stop = min(header.end, end)
        if batch is not None:
            yield seq, batch.slice(seq - header.first_seq, stop - seq)
        seq = stop
    if seq < end:
        raise DataLossError(f"journal {journal}: seqs {seq} to {end} are missing")


def _gather(parts: Iterable[Part]) -> Iterator[Part]:
    """Join small consecutive batches; before an error, yield the batches collected so far."""
    small: list[pa.RecordBatch] = []
    first = count = nbytes = 0
    try:
        for seq, batch in parts:
            large = batch.num_rows >= GATHER_ROWS
            full = count >= GATHERED_ROWS or nbytes >= GATHERED_BYTES
            if small and (large or full or seq != first + count):
                yield first, _join(small)
                small, count, nbytes = [], 0, 0
            if large:
                yield seq, batch
                continue
            if not small:
                first = seq
            small.append(batch)
            count += batch.num_rows
            nbytes += batch.nbytes
    except FlumengError:
        if small:
            yield first, _join(small)
        raise
    if small:
        yield first, _join(small)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches, EVENT_SCHEMA).combine_chunks().to_batches()
    return joined


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
