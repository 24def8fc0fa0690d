"""Reads bodies that are Arrow IPC streams of events, with the sender's times and attributes.

The sender is not trusted: its columns are checked whole, and compressed buffers are refused before
their memory is allocated. Attributes that the source sets cannot be forged.
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

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
OURS = ("source", "peer", "client", "path")
"""Attributes that the source sets."""

_ROW_BYTES = 128
"""Bytes of a row besides its texts: numbers, and attributes that the source adds."""


def pieces(
    body: bytes, encoding: str, most_bytes: int, memory: Share, *, longest: int
) -> list[Messages]:
    """Decompress a body and return its events in pieces that fit into frames; ``memory`` already
    includes the body. Raises RefusedError, also for an event above ``longest`` bytes, and
    OverBoundError, MemoryError."""
    data = unpack(body, encoding, most_bytes, memory)
    memory.take(len(data))
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
    """Return all events of a stream in one batch, None for no event."""
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
        _require_columns(pa.ipc.read_schema(messages.read_next_message()))
        batches = [_events(message) for message in messages]
        if not any(batch.num_rows for batch in batches):
            return None
        (events,) = pa.Table.from_batches(batches, EVENT_SCHEMA).combine_chunks().to_batches()
    except (pa.ArrowException, ValueError, OSError, EOFError, StopIteration, CorruptError) as error:
        require_memory(error)
        raise RefusedError(
            400, f"the body is not an Arrow IPC stream of events: {error}"
        ) from error
    return events


def _require_columns(schema: pa.Schema) -> None:
    found = {field.name: str(field.type) for field in schema}
    wanted = {field.name: str(field.type) for field in EVENT_SCHEMA}
    if list(found.items()) != list(wanted.items()):
        raise RefusedError(
            400, f"the columns of the Arrow stream are {_shown(found)}: send {_shown(wanted)}"
        )


def _shown(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none"


def _events(message: pa.Message) -> pa.RecordBatch:
    if frame.unpacked_bytes(message):
        raise RefusedError(
            400, "the Arrow stream has compressed buffers: compress the body, as Content-Encoding"
        )
    events = frame.read_events(message)
    columns = dict(zip(EVENT_SCHEMA.names, events.columns, strict=True))
    for name, column in {**columns, "attrs, as a value,": events.column(3).items}.items():
        if column.null_count:
            raise RefusedError(400, f"the column {name} has a null: fill it")
    return events


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
