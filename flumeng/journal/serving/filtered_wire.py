"""Ranges of events behind a flow's filters, as a gateway sends them: chunks in their order. Each
chunk says up to where the range is complete, also when the filters dropped all of its events."""

from __future__ import annotations

from collections.abc import Iterator

import crc32c
import pyarrow as pa

from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import CorruptError

CHUNK_SCHEMA = pa.schema(
    [pa.field("events", pa.binary()), pa.field("crc", pa.uint32()), pa.field("end", pa.int64())]
)
"""``events``: an Arrow stream, empty without events; ``crc``: its CRC-32C. ``end``: all events of
the range below this seq are in this chunk and those before it, or were dropped."""
SEQ, SITES = "__seq", "__sites"
"""Columns of each chunk: the event's seq, and its attribute ``sites`` before the filters."""
OWN = ("journal", "seq", "replayed")
"""Columns of a range that its reader adds: chunks lack them."""


def chunk(events: bytes, end: int) -> pa.RecordBatch:
    row = {"events": events, "crc": crc32c.crc32c(events), "end": end}
    return pa.RecordBatch.from_pylist([row], CHUNK_SCHEMA)


def events_of(chunk: pa.RecordBatch, sender: str) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield the events of each row of a chunk, with its ``end``. Raises CorruptError, which names
    the ``sender``."""
    if chunk.schema != CHUNK_SCHEMA:
        raise CorruptError(
            f"{sender} sends no filtered events: it needs a version of flumeng that runs filters "
            "for other sites"
        )
    for row in chunk.to_pylist():
        events = row["events"]
        if crc32c.crc32c(events) != row["crc"]:
            raise CorruptError(f"{sender} sends filtered events with a wrong checksum")
        yield row["end"], read(events)


def written(events: pa.Table) -> bytes:
    """Return the events as a compressed Arrow stream; empty without events."""
    if not events.num_rows:
        return b""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, events.schema, options=options) as writer:
        writer.write_table(events.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def read(events: bytes) -> list[pa.RecordBatch]:
    """Return the events of a stream. Raises CorruptError."""
    if not events:
        return []
    try:
        with pa.ipc.open_stream(events) as stream:
            return [batch for batch in stream if batch.num_rows]
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"filtered events cannot be read: {error}") from error


def read_schema(filtered: pa.Schema) -> pa.Schema:
    """Return the columns that a reader has behind the filters: theirs, and the event's identity."""
    missing = [READ_SCHEMA.field(name) for name in OWN if name not in filtered.names]
    return pa.schema([*filtered, *missing])
