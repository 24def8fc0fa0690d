"""What an Arrow IPC message says of its own size, before anything is unpacked.

Each compressed buffer begins with the length that it claims to have when it is unpacked, and Arrow
takes that much memory before it looks at what follows. Where the buffers lie is in the message's
metadata, a flatbuffer (`Message.fbs` in the Arrow format), which pyarrow does not let one read.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from flumeng.platform.errors import CorruptError

_HEADER = 2  # fields of the table Message, by number
_BUFFERS, _COMPRESSION = 2, 3  # of the table RecordBatch


def unpacked_bytes(message: pa.Message) -> int:
    """How much memory reading a record batch takes beside its message; 0 when not compressed.

    Raises CorruptError for another kind of message and for one that is no valid flatbuffer.
    """
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
    """Where a field of a table lies; 0 when it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    slot = 4 + 2 * number
    if slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, table - back + slot)
    return table + offset if offset else 0


def _follow(data: Any, at: int) -> int:
    """Where the offset that lies there points to."""
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)
