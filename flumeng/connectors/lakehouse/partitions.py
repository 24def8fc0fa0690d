"""Splits events by partition: by columns, or by the day, hour, month or year of a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.lakehouse.options import Transform
from flumeng.platform.errors import UserError

Values = tuple[str | None, ...]
"""Partition values as text; None for null."""

LONGEST_BYTES = 1024
"""Longest text to partition by. Parquet statistics, which give the partition, omit long texts."""
_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


@dataclass(frozen=True)
class Partition:
    """A partition field called ``name`` in the table: ``transform`` of an event ``column``."""

    name: str
    column: str
    transform: Transform = "identity"


def check(partitions: Sequence[Partition], events: pa.Schema) -> None:
    """Raise UserError when ``events`` cannot be partitioned by these fields."""
    for partition in partitions:
        if partition.column not in events.names:
            raise UserError(f"partition_by: the events have no column {partition.column}")
        kind = events.field(partition.column).type
        timed = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        if partition.transform != "identity" and not timed:
            raise UserError(f"partition_by: {partition.column} is {kind}, not a time or date")
        if partition.transform == "identity" and not _is_plain(kind):
            raise UserError(
                f"partition_by: {partition.column} is {kind}: use texts, integers, dates, "
                f"booleans, or day({partition.column})"
            )


def too_long(events: pa.RecordBatch, partitions: Sequence[Partition]) -> pa.Array | None:
    """Return a mask of events with an overlong text to partition by; None if there are none."""
    long = None
    for partition in partitions:
        column = events.column(partition.column)
        if pa.types.is_string(column.type):
            over = pc.fill_null(pc.greater(pc.binary_length(column), LONGEST_BYTES), False)
            long = over if long is None else pc.or_(long, over)
    return long if long is not None and pc.any(long).as_py() else None


def split(events: pa.Table, partitions: Sequence[Partition]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield the values and the events of each partition; events keep their order."""
    if not events.num_rows:
        return
    columns = [(partition, _encoded(events, partition)) for partition in partitions]
    codes = np.zeros(events.num_rows, np.int64)
    for _, column in columns:
        indices = column.indices.to_numpy()
        codes = np.unique(codes * len(column.dictionary) + indices, return_inverse=True)[1]
    if not codes.any():
        yield _values(columns, 0), events
        return
    order = np.argsort(codes, kind="stable")
    grouped = events.take(pa.array(order))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield _values(columns, int(order[start])), grouped.slice(start, end - start)


def _encoded(events: pa.Table, partition: Partition) -> pa.DictionaryArray:
    column = events[partition.column]
    if partition.transform != "identity":
        column = _floor(column, _UNITS[partition.transform])
    return column.combine_chunks().dictionary_encode(null_encoding="encode")


def _floor(column: pa.ChunkedArray, unit: str) -> pa.ChunkedArray:
    """Return years, months, days or hours since 1970, rounded down."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    micros = pc.fill_null(column.cast(pa.timestamp("us")).cast(pa.int64()), 0).to_numpy()
    numbers = micros.astype("datetime64[us]").astype(f"datetime64[{unit}]").astype(np.int64)
    return pa.chunked_array([pa.array(numbers, mask=pc.is_null(column).to_numpy())])


def _values(columns: Sequence[tuple[Partition, pa.DictionaryArray]], row: int) -> Values:
    return tuple(
        _text(partition.transform, column.dictionary[column.indices[row].as_py()])
        for partition, column in columns
    )


def _text(transform: Transform, value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    if transform != "identity":
        return str(np.array(value.as_py()).astype(f"datetime64[{_UNITS[transform]}]"))
    return str(value.cast(pa.string()).as_py())


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
    )
