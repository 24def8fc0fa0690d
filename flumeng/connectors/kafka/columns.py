"""Converts messages in librdkafka's memory into Arrow columns of events. No Python code runs per
message: it would cost more than fetching the message."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flumeng.connectors.kafka.compiled_loops import Numbers, count_headers, gather, list_headers
from flumeng.connectors.kafka.librdkafka import MessageBatch
from flumeng.connectors.kafka.messages import HEADERS, empty_maps
from flumeng.events.schema import READ_SCHEMA

NO_TIME = 0
"""librdkafka's timestamp type for messages without a timestamp."""
PIECE_BYTES = 64 * 1024 * 1024
"""Size at which columns are cut. One more message of 1 GB still fits Arrow's limit of 2 GB."""

Columns = dict[str, pa.Array]
"""The columns that differ between messages: ``body``, ``ts``, ``seq``, ``key``, ``headers``."""


def pieces(batch: MessageBatch, chosen: Numbers) -> list[Numbers]:
    """Group ``chosen``, indices of messages, into pieces of about PIECE_BYTES."""
    ends = np.cumsum(batch.of("body_bytes", chosen) + batch.of("key_bytes", chosen))
    cuts = np.flatnonzero(np.diff(ends // PIECE_BYTES)) + 1
    return [piece for piece in np.split(chosen, cuts) if len(piece)]


def columns(batch: MessageBatch, chosen: Numbers) -> Columns:
    milliseconds, kinds, handles = batch.examined(chosen)
    return {
        "body": binaries(batch.of("body", chosen), batch.of("body_bytes", chosen)),
        "ts": times(milliseconds, kinds),
        "seq": pa.array(batch.of("offset", chosen)),
        "key": binaries(batch.of("key", chosen), batch.of("key_bytes", chosen)),
        "headers": _headers(handles),
    }


def binaries(addresses: Numbers, sizes: Numbers) -> pa.BinaryArray:
    """Return a column of the bytes at ``addresses``, null where the address is 0."""
    there = addresses != 0
    ends = np.cumsum(np.where(there, sizes, 0), dtype=np.int64)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    total = int(ends[-1]) if len(ends) else 0
    assert total == offsets[-1], f"{total} bytes in one column"
    data = pa.allocate_buffer(total)
    gather(np.ascontiguousarray(addresses), ends, np.frombuffer(data, np.uint8))
    valid = None if there.all() else pa.array(there).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), data]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def times(milliseconds: Numbers, kinds: Numbers) -> pa.Array:
    """Return the column ``ts`` from milliseconds since 1970 and librdkafka's timestamp types. Since
    format 1 a message without a timestamp has -1, which is null as NO_TIME is."""
    none = (kinds == NO_TIME) | (milliseconds < 0)
    column = pa.array(milliseconds, pa.timestamp("ms", "UTC"), mask=none)
    return column.cast(READ_SCHEMA.field("ts").type, safe=False)


def _headers(handles: Numbers) -> pa.MapArray:
    if not handles.any():
        return empty_maps(HEADERS, len(handles))
    counts = np.empty(len(handles), np.int64)
    count_headers(handles, counts)
    names = np.empty((counts.sum(), 2), np.uintp)
    values = np.empty((counts.sum(), 2), np.uintp)
    list_headers(handles, counts, names, values)
    return maps(counts, texts(binaries(*names.T)), binaries(*values.T))


def texts(names: pa.BinaryArray) -> pa.StringArray:
    """Decode UTF-8; invalid bytes become U+FFFD."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def maps(counts: Numbers, names: pa.StringArray, values: pa.BinaryArray) -> pa.MapArray:
    """Return maps of headers, ``counts[i]`` for message i. Of equal names the last value counts."""
    owners = np.repeat(np.arange(len(counts)), counts)
    encoded = names.dictionary_encode()
    pairs = owners * len(encoded.dictionary) + encoded.indices.to_numpy()
    _, first = np.unique(pairs, return_index=True)
    if len(first) < len(pairs):
        _, from_behind = np.unique(pairs[::-1], return_index=True)
        order = np.argsort(first)
        kept, last = first[order], (len(pairs) - 1 - from_behind)[order]
        names, values = names.take(pa.array(kept)), values.take(pa.array(last))
        counts = np.bincount(owners[kept], minlength=len(counts))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)
