"""Arrow messages as senders might make them: other kinds, codecs and versions, or damaged."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa

from flumeng.journal.log.frame import _field, _follow

NUMBERS = [0, 1, 7, 8, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
_VERSION, _HEADER = 0, 2  # fields of the table Message
_BUFFERS, _COMPRESSION = 2, 3  # of the table RecordBatch
_PLACE_BYTES = 16
_PREFIX_BYTES = 8


def stream_of(batch: pa.RecordBatch, **options: Any) -> list[bytes]:
    """The messages of a stream: a schema, dictionaries, the batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        out.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return [message.serialize().to_pybytes() for message in reader]


def with_hidden_codec(batch: pa.RecordBatch, codec: str) -> bytes:
    """A compressed record batch of metadata version V4, whose codec is a custom entry."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as out:
        out.write_batch(batch, custom_metadata={"ARROW:experimental_compression": codec})
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    message = bytearray([*reader][1].serialize().to_pybytes())
    metadata, header = _record_batch(message)
    version = _field(metadata, _follow(metadata, 0), _VERSION)
    struct.pack_into("<h", metadata, version, pa.ipc.MetadataVersion.V4)
    (back,) = struct.unpack_from("<i", metadata, header)
    struct.pack_into("<H", metadata, header - back + 4 + 2 * _COMPRESSION, 0)
    return bytes(message)


def with_buffer(message: bytes, number: int, like: int) -> bytes:
    """The message of a record batch with a buffer in the place of another one."""
    made = bytearray(message)
    metadata, header = _record_batch(made)
    places = _follow(metadata, _field(metadata, header, _BUFFERS)) + 4
    at, source = places + _PLACE_BYTES * number, places + _PLACE_BYTES * like
    metadata[at : at + _PLACE_BYTES] = metadata[source : source + _PLACE_BYTES]
    return bytes(made)


def _record_batch(message: bytearray) -> tuple[memoryview, int]:
    """The metadata, and where the table RecordBatch begins in it."""
    metadata = memoryview(message)[_PREFIX_BYTES:]
    return metadata, _follow(metadata, _field(metadata, _follow(metadata, 0), _HEADER))


def bent(message: bytes, chance: random.Random) -> bytes:
    """Overwrite numbers, flip bits and move pieces; mostly in Arrow's own."""
    data = bytearray(message)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(min(len(data), chance.choice((600, len(data)))))
        width = chance.choice((1, 2, 4, 8))
        at -= at % width
        kind = chance.randrange(4)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            number = chance.choice(NUMBERS) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, "little")
        elif kind == 2:
            number = int.from_bytes(data[at : at + width], "little") + chance.choice((-8, -1, 1, 8))
            data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
        else:
            source = chance.randrange(len(data))
            data[at : at + width] = data[source : source + width]
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.02 else data)
