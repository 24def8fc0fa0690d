"""Cuts and joins record batches to the size that a sink takes at once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def cut(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the same events in non-empty batches of at most about ``most_bytes``."""
    for batch in batches:
        rows = max(1, batch.num_rows * most_bytes // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def gathered(batches: Iterator[pa.RecordBatch], about_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the same events in non-empty batches of about ``about_bytes``, the last smaller."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in cut(batches, about_bytes):
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= about_bytes:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


def tables(batches: Iterator[pa.RecordBatch], about_bytes: int) -> Iterator[pa.Table]:
    """Yield the same events in non-empty tables of at least ``about_bytes``, except the last."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            held_bytes += batch.nbytes
        if held_bytes >= about_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
