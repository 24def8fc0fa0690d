"""The filter ``explode``: makes a row of each array entry, one with null if there is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import note
from flumeng.events.byte_column import ByteColumn, Mask, Positions
from flumeng.events.columns import changed
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import Filter
from flumeng.filters.formats import json_values
from flumeng.filters.json_check import are_json
from flumeng.filters.options.explode import Explode

ROWS_AT_ONCE, BYTES_AT_ONCE = 8192, 16 * 1024 * 1024
"""Most rows of an output batch, and most bytes of the columns that are copied for each entry."""
TEXTS = pa.list_(pa.string())


class ExplodeFilter(Filter):
    def __init__(self, options: Explode) -> None:
        self._options = options

    def apply(self, batch: LazyBatch) -> LazyBatch:
        column, target = self._options.column, self._options.target
        kind = batch.schema.field(column).type
        same = kind if target == column else pa.string()
        entry = kind.value_type if _is_list(kind) else same
        kept = [field for field in batch.schema if field.name != column]
        schema = pa.schema([*kept, pa.field(target, entry)])
        return batch.arrow(ExplodeStage(column, schema), schema)


@dataclass(frozen=True)
class ExplodeStage:
    column: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self._exploded(batch)

    def _exploded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        arrays = batch[self.column]
        if not _is_list(arrays.type):
            arrays, wrong = _of_json(arrays)
            reason = pa.scalar(f"explode: {self.column} is no JSON array", pa.string())
            reasons = pc.if_else(pa.array(wrong), reason, None)
            batch = changed(batch, {"attrs": note(batch["attrs"], reasons)})
        shared = batch.select(self.schema.names[:-1])
        lengths = pc.list_value_length(arrays).fill_null(0).to_numpy(False).astype(np.int64)
        rows = np.repeat(np.arange(len(batch)), np.maximum(lengths, 1))
        entries = _padded(arrays, lengths)
        for first, last in _cuts(_bytes_of(shared)[rows]):
            columns = shared.take(pa.array(rows[first:last])).columns
            entry = entries.slice(first, last - first).cast(self.schema.types[-1])
            yield pa.RecordBatch.from_arrays([*columns, entry], schema=self.schema)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _of_json(texts: pa.Array) -> tuple[pa.Array, Mask]:
    """Parse JSON arrays of texts; return them, and which inputs are neither array nor null."""
    if pa.types.is_string(texts.type):
        texts = pc.ascii_trim_whitespace(texts)
    raws = texts.cast(pa.binary())
    valid = are_json(raws)
    arrays, failed = json_values.column(ByteColumn(pc.if_else(valid, raws, b"null")), TEXTS)
    invalid = pc.and_(raws.is_valid(), pc.invert(valid)).to_numpy(False)
    return arrays, failed | invalid


def _padded(arrays: pa.Array, lengths: Positions) -> pa.Array:
    """Return the entries of all arrays, with a null for each empty or null array."""
    empty = lengths == 0
    places = np.cumsum(np.maximum(lengths, 1)) - np.maximum(lengths, 1)
    is_entry = np.ones(int(np.maximum(lengths, 1).sum()), np.bool_)
    is_entry[places[empty]] = False
    taken = pa.array(np.cumsum(is_entry) - 1, pa.int64(), mask=~is_entry)
    return arrays.flatten().take(taken)


def _bytes_of(batch: pa.RecordBatch) -> Positions:
    sizes = np.full(len(batch), 64, np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy(False)
    return sizes


def _cuts(sizes: Positions) -> Iterator[tuple[int, int]]:
    """Yield the bounds of batches for rows of ``sizes`` bytes; one empty batch for no rows."""
    ends = np.cumsum(sizes)
    first = 0
    while first == 0 or first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + BYTES_AT_ONCE, side="right"))
        last = min(max(fitting, first + 1), first + ROWS_AT_ONCE, len(sizes))
        yield first, last
        if last == len(sizes):
            return
        first = last
