"""Reads bodies that are Arrow record-batch messages, one after another, in EVENT_SCHEMA.

The sender is not trusted. No schema of a sender is parsed: Arrow's parser crashes on damaged ones.
The batches are checked whole, and compressed buffers are refused before their memory is allocated.
Attributes that the source sets cannot be forged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flumeng.connectors.api.framing import Messages
from flumeng.connectors.http.body import PIECE_BYTES, RefusedError, Share, unpack
from flumeng.events.buffers import offsets_of
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log import frame
from flumeng.platform.errors import CorruptError
from flumeng.platform.memory import require_memory

CONTENT_TYPE = "application/vnd.flumeng.events+arrow"
MOST_BATCHES = 1000
"""Most record batches of a body: each needs much more memory than its bytes."""
OURS = ("source", "peer", "client", "path")
"""Attributes that the source sets."""

_BODY, _, _HOST, _ATTRS = EVENT_SCHEMA.names
_COLUMNS = ", ".join(f"{field.name} {field.type}" for field in EVENT_SCHEMA)
_ALIGNMENT = 8
_PADDING_BYTES = 64
"""A buffer is followed by less padding, which some senders count as part of it."""
_ROW_BYTES = 128
"""Bytes of a row besides its texts: numbers, and attributes that the source adds."""


def pieces(
    body: bytes, encoding: str, most_bytes: int, memory: Share, *, longest: int
) -> list[Messages]:
    """Decompress a body and return its events in pieces that fit into frames; ``memory`` already
    includes the body. Raises RefusedError, also for an event above ``longest`` bytes, and
    OverBoundError, MemoryError."""
    data = unpack(body, encoding, most_bytes, memory)
    memory.take(2 * len(data))  # a copy of the events, and numbers about rows
    return list(_pieces(data, longest))


def _pieces(body: bytes, longest: int) -> Iterator[Messages]:
    events = _read(body)
    if events is None:
        return
    _require_bodies(events, longest)
    _require_own_names(events)
    bodies, _, hosts, attrs = events.columns
    entries = offsets_of(attrs)
    sizes = np.diff(offsets_of(bodies)) + np.diff(offsets_of(hosts)) + _ROW_BYTES
    for texts in (attrs.keys, attrs.items):
        sizes += np.diff(offsets_of(texts)[entries])
    ends = np.cumsum(sizes, dtype=np.int64)
    first, before = 0, 0
    while first < len(ends):
        last = max(int(np.searchsorted(ends, before + PIECE_BYTES, "right")), first + 1)
        yield Messages(b"", columns=events.slice(first, last - first))
        first, before = last, int(ends[last - 1])


def _read(body: bytes) -> pa.RecordBatch | None:
    """Return a copy of all events in one batch, None for no event."""
    stream = pa.BufferReader(body)
    batches: list[pa.RecordBatch] = []
    try:
        while stream.tell() < len(body):
            if len(batches) == MOST_BATCHES:
                raise RefusedError(413, f"more than {MOST_BATCHES} record batches: join them")
            batches.append(_events(pa.ipc.read_message(stream)))
    except (pa.ArrowException, ValueError, OSError, EOFError, CorruptError) as error:
        require_memory(error)
        raise RefusedError(
            400,
            f"the body is not Arrow record batches, without a schema, of the columns {_COLUMNS}: "
            f"{error}",
        ) from error
    return pa.concat_batches(batches) if any(batch.num_rows for batch in batches) else None


def _events(message: pa.Message) -> pa.RecordBatch:
    if frame.unpacked_bytes(message):
        raise RefusedError(
            400, "a record batch has compressed buffers: compress the body, as Content-Encoding"
        )
    if message.body.address % _ALIGNMENT:
        raise CorruptError(f"a message does not begin at a multiple of {_ALIGNMENT} bytes")
    events = frame.read_events(message)
    buffers = [part for column in events.columns for part in column.buffers() if part is not None]
    if events.num_rows and sum(part.size for part in buffers) > message.body.size:
        raise CorruptError("buffers of a record batch overlap")
    _require_types(events)
    columns = dict(zip(EVENT_SCHEMA.names, events.columns, strict=True))
    for name, column in {**columns, "attrs, as a value,": events.column(3).items}.items():
        if column.null_count:
            raise RefusedError(400, f"the column {name} has a null: fill it")
    return events


def _require_types(events: pa.RecordBatch) -> None:
    """Raise CorruptError for texts that do not use their bytes. Those of one or two rows of type
    ``large_binary`` would pass, since half of each offset is read as the next one."""
    bodies, _, hosts, attrs = events.columns
    for name, texts in (
        (_BODY, bodies),
        (_HOST, hosts),
        (_ATTRS, attrs.keys),
        (_ATTRS, attrs.items),
    ):
        data = texts.buffers()[2]
        if data is not None and data.size - offsets_of(texts)[-1] >= _PADDING_BYTES:
            raise CorruptError(f"the column {name} has another type")


def _require_bodies(events: pa.RecordBatch, longest: int) -> None:
    lengths = np.diff(offsets_of(events.column(0)))
    if (over := np.flatnonzero(lengths > longest)).size:
        raise RefusedError(
            413,
            f"the body of event {over[0]} of the request has {lengths[over[0]]} bytes, above the "
            f"max_line_bytes of this source, {longest}",
        )


def _require_own_names(events: pa.RecordBatch) -> None:
    names = events.column(3).keys
    for name in OURS:
        if _contains(names, name.encode()):
            raise RefusedError(
                400, f"events have an attribute {name}, which this source sets itself: rename it"
            )


def _contains(texts: pa.StringArray, text: bytes) -> bool:
    places = offsets_of(texts)
    starts = places[:-1][np.diff(places) == len(text)]
    if not len(starts):
        return False
    data: NDArray[np.uint8] = np.frombuffer(texts.buffers()[2], np.uint8)
    for at, byte in enumerate(text):  # few are left after the first bytes
        starts = starts[data[starts + at] == byte]
    return bool(len(starts))
