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
from flumeng.journal.schema import READ_SCHEMA


def rows(
    frames: Iterable[pa.Buffer], journal: str, start: int, end: int, *, replayed: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the events of [start, end) in READ_SCHEMA from frames that cover them.

    Raises CorruptError for a damaged frame, DataLossError when a seq of the range is missing.
    """
    owner = identity(journal)
    seq = start
    for frame in frames:
        try:
            header, batch = decode(frame, owner)
        except BadFrameError as error:
            raise CorruptError(f"journal {journal}, after seq {seq}: {error}") from error
        if header.end <= seq or seq >= end:
            continue
        if header.first_seq > seq:
            raise DataLossError(
                f"journal {journal}: seq {seq} to {header.first_seq - 1} are missing"
            )
        stop = min(header.end, end)
        yield _with_position(
            batch.slice(seq - header.first_seq, stop - seq), journal, seq, replayed=replayed
        )
        seq = stop
    if seq < end:
        raise DataLossError(f"journal {journal}: seq {seq} to {end - 1} are missing")


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
