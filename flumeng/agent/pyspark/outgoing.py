"""Makes events of Spark's rows. Each has an id that a repeated task gives to it again.

An id is ``WRITE-PARTITION-ROW-DIGEST``, with a digest of the row's values. A repeated task may get
its rows in another order, as after a shuffle. Then the ids differ: readers that drop repeated ids
keep some events twice, and never lose one.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from flumeng.connectors.http.arrow_body import OURS
from flumeng.events import attributes
from flumeng.events.buffers import offsets_of
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.platform.errors import UserError

ID = "spark_id"
"""The attribute with the id."""
DIGEST_BYTES = 6
BODY, TS, HOST, ATTRS = EVENT_SCHEMA.names
WANTED: Mapping[str, tuple[str, str]] = {
    BODY: ("binary or string", "cast it to string, or make JSON: to_json(struct(...))"),
    TS: ("timestamp", "cast it to timestamp"),
    HOST: ("string", "cast it to string"),
    ATTRS: ("map<string,string>", "cast it to map<string,string>"),
}
POSITIONS = ("journal", "seq", "replayed")


def columns_of(schema: StructType) -> dict[str, str]:
    """Return the column of the rows for each column of events. Raises UserError for a column that
    events do not have, and for a wrong type."""
    fields = {field.name: field.dataType for field in schema.fields}
    if len(fields) == 1 and BODY not in fields and _fits(BODY, *fields.values()):
        return {BODY: next(iter(fields))}
    for name, kind in fields.items():
        if name in POSITIONS:
            raise UserError(f'column {name} is set by the journal: remove it with drop("{name}")')
        if name not in WANTED:
            raise UserError(
                f"events have no column {name}: put it into body or attrs, or remove it. Columns "
                f"are {', '.join(WANTED)}"
            )
        if not _fits(name, kind):
            wanted, remedy = WANTED[name]
            raise UserError(f"column {name} is {kind.simpleString()}, not {wanted}: {remedy}")
    if BODY not in fields:
        raise UserError(f"column body is missing: it is required, as {WANTED[BODY][0]}")
    return {name: name for name in fields}


def _fits(name: str, kind: DataType) -> bool:
    if name == BODY:
        return isinstance(kind, BinaryType | StringType)
    if name == TS:
        return isinstance(kind, TimestampType)
    if name == HOST:
        return isinstance(kind, StringType)
    return (
        isinstance(kind, MapType)
        and isinstance(kind.keyType, StringType)
        and isinstance(kind.valueType, StringType)
    )


class Outgoing:
    """The events of one task. ``write``: what tells its write from others, ``partition``: what
    tells the task from others of the write."""

    def __init__(self, columns: Mapping[str, str], write: str, partition: int) -> None:
        self._columns = columns
        self._write = f"{write}-{partition}"
        self._rows = 0
        self._host = socket.gethostname()

    def events(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as events without nulls. A missing time is now, a missing host this one.
        Null attributes, and those that a source sets, are left out. Raises UserError for a row
        without a body."""
        bodies, times, hosts = (self._column(rows, name) for name in (BODY, TS, HOST))
        if bodies.null_count:
            row = self._rows + pc.index(bodies.is_null(), True).as_py()
            raise UserError(f"row {row} of partition {self._write} has no body: filter such rows")
        attrs = _own(self._column(rows, ATTRS))
        digests = _digests(bodies, times, hosts, attrs)
        numbers = pa.array(np.arange(self._rows, self._rows + len(rows))).cast(pa.string())
        ids = pc.binary_join_element_wise(self._write, numbers, digests, "-")
        self._rows += len(rows)
        columns = [
            bodies,
            pc.fill_null(times, pa.scalar(time.time_ns() // 1000, times.type)),
            pc.fill_null(hosts, self._host),
            attributes.note(attrs, ids, ID),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)

    def _column(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        kind = EVENT_SCHEMA.field(name).type
        if name not in self._columns:
            return pa.nulls(len(rows), kind)
        return rows[self._columns[name]].cast(kind)


def _own(attrs: pa.MapArray) -> pa.MapArray:
    """Return maps without null ones, null values, and the names of sources and ids."""
    offsets = attrs.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = (part.slice(first, last - first) for part in (attrs.keys, attrs.items))
    kept = ~pc.is_in(keys, pa.array([*OURS, ID])).to_numpy(zero_copy_only=False)
    kept &= items.is_valid().to_numpy(zero_copy_only=False)
    valid = attrs.is_valid().to_numpy(zero_copy_only=False)
    kept &= np.repeat(valid, np.diff(offsets))
    places = pa.array(np.flatnonzero(kept))
    left = np.concatenate([[0], np.cumsum(kept)])[offsets - first].astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(left), keys.take(places), items.take(places))


def _digests(bodies: pa.Array, times: pa.Array, hosts: pa.Array, attrs: pa.MapArray) -> pa.Array:
    """Return a digest of each row's values, the same for null and for an empty or zero one."""
    stamps = pc.fill_null(times.cast(pa.int64()), 0).to_numpy()
    rows, entries = np.arange(len(bodies) + 1), offsets_of(attrs)
    pieces = [_pieces(memoryview(stamps.tobytes()), 8 * rows)]
    for texts, bounds in (
        (bodies, rows),
        (pc.fill_null(hosts, ""), rows),
        (attrs.keys, entries),
        (attrs.items, entries),
    ):
        places = offsets_of(texts)
        lengths = np.diff(places).astype("<i4").tobytes()
        pieces.append(_pieces(memoryview(lengths), 4 * bounds))
        pieces.append(_pieces(memoryview(texts.buffers()[2] or b""), places[bounds]))
    values = [
        hashlib.blake2b(b"".join(row), digest_size=DIGEST_BYTES).hexdigest()
        for row in zip(*pieces, strict=True)
    ]
    return pa.array(values, pa.string())


def _pieces(data: memoryview, bounds: NDArray[Any]) -> Iterator[memoryview]:
    return (data[start:end] for start, end in pairwise(bounds.tolist()))


def parts(events: pa.RecordBatch, nbytes: int) -> Iterator[pa.RecordBatch]:
    """Cut events into parts of about ``nbytes``, each of at least one event."""
    rows = max(1, len(events) * nbytes // max(1, events.nbytes))
    for first in range(0, len(events), rows):
        yield events.slice(first, rows)
