"""Reads the unpacked size of an Arrow IPC message.

Each compressed buffer begins with its unpacked length, which Arrow allocates unchecked. Where the
buffers lie is in a flatbuffer (`Message.fbs` of the Arrow format) that pyarrow does not expose.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from flumeng.platform.errors import CorruptError

_HEADER = 2  # fields of the table Message, by number
_BUFFERS, _COMPRESSION = 2, 3  # of the table RecordBatch


def unpacked_bytes(message: pa.Message) -> int:
    """Memory needed to read a record batch beside its message; 0 when uncompressed. Raises
    CorruptError for another kind of message and an invalid flatbuffer."""
    if message.type != "record batch":
        raise CorruptError(f"the message is no record batch but a {message.type}")
    metadata = memoryview(message.metadata)
    try:
        batch = _follow(metadata, _field(metadata, _follow(metadata, 0), _HEADER))
        if not _field(metadata, batch, _COMPRESSION):
            return 0
        buffers = _follow(metadata, _field(metadata, batch, _BUFFERS))
        (count,) = struct.unpack_from("<I", metadata, buffers)
        places = metadata[buffers + 4 : buffers + 4 + 16 * count]
        claims = (
            struct.unpack_from("<q", message.body, offset)[0]
            for offset, length in struct.iter_unpack("<qq", places)
            if length
        )
        return sum(max(0, claim) for claim in claims)  # -1: this one was left as it is
    except struct.error as error:
        raise CorruptError(f"the message's metadata does not hold together: {error}") from error


def _field(data: Any, table: int, number: int) -> int:
    """Where a field of a table lies; 0 for its default."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    slot = 4 + 2 * number
    if slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, table - back + slot)
    return table + offset if offset else 0


def _follow(data: Any, at: int) -> int:
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)
