"""A frame: one record batch with a checksummed header that identifies its place in a journal.

    header (64 bytes) | source state (JSON, may be empty) | Arrow IPC record-batch message

Each part begins on a multiple of 64 bytes, padded with zeros. One CRC covers everything after the
header. Another covers the header itself, with the first CRC and the frame's identity (journal,
term, sequence numbers). So every bit is checked, and a frame of another journal or position is
rejected. A scan can trust the lengths in headers without reading the payloads.

Arrow IPC itself has no checksum: most flipped bits would read back as wrong data.
"""

from __future__ import annotations

import itertools
import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from flumeng.events.schema import EVENT_SCHEMA
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.memory import is_shortage

ALIGNMENT = 64
MAX_ROWS = 65_536
TARGET_BYTES = 4 << 20  # of raw events: the most that a builder of batches should aim at
MAX_MESSAGE_BYTES = 64 << 20
MAX_STATE_BYTES = 16 << 20
MAX_WHOLE_STATE_BYTES = 1 << 30  # at the beginning of a segment
STATE_KEYS_AT_ONCE = 4096
MAX_UNPACKED_BYTES = 512 << 20  # of compressed events: 64 MiB of zeros would unpack to 16 GiB

MAGIC = b"FLFR"
VERSION = 1
LOST = 1  # a flag: the events of these seqs are gone; a repair says so in their place
ENCRYPTED = 2  # a flag: the message is one of ``encryption``
_FLAGS = LOST | ENCRYPTED
ENCRYPTION_BYTES = 52  # an encrypted message is so much longer
MAX_LOST = 2**32 - 1
# magic, version, flags, reserved, state bytes, message bytes, rows, payload CRC, term, first seq,
# journal, reserved; the header's own CRC follows.
FIELDS = struct.Struct("<4sBBHIIIIQQ16sI")
_CRC = struct.Struct("<I")
HEADER_BYTES = FIELDS.size + _CRC.size
assert HEADER_BYTES == ALIGNMENT

_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999, UTC
_NAMESPACE = uuid.UUID("5c0f4f0e-6a0b-5d0e-9d3c-0f1a6c2be7a1")
_ZEROS = bytes(ALIGNMENT)
_NO_EVENTS = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in EVENT_SCHEMA], schema=EVENT_SCHEMA
)

# LZ4 pays for text: it halves the bytes to sync, send and keep for about 1.2 ms per MB, and columns
# that repeat in each row (host, attributes) nearly vanish. It does not pay for a few rows (25 us to
# unpack, a few hundred bytes saved), nor for bodies that are already compressed or encrypted, as a
# small sample shows, unless the repeated columns are a good part of the whole.
_LZ4_FROM_BYTES = 4096
_SAMPLE_BYTES = 8192
_LEAST_SAVED = 0.1
_PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_SAMPLER = pa.Codec("lz4_raw")
_HEADER = 2  # fields of the table Message, by number
_BUFFERS, _COMPRESSION = 2, 3  # of the table RecordBatch


class BadFrameError(CorruptError):
    """The bytes are not a valid frame of this journal; the caller adds the offset."""


def identity(journal: str) -> bytes:
    """Return the 16 bytes that identify a journal in its files."""
    return uuid.uuid5(_NAMESPACE, journal).bytes


def padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a frame with seqs [first_seq, end). A ``lost`` frame consists of its header."""

    journal: bytes
    term: int
    first_seq: int
    count: int
    state_bytes: int
    message_bytes: int
    payload_crc: int
    lost: bool = False
    encrypted: bool = False

    @property
    def end(self) -> int:
        return self.first_seq + self.count

    @property
    def crc(self) -> int:
        return int(crc32c(self._fields()))

    @property
    def message_offset(self) -> int:
        return HEADER_BYTES + padded(self.state_bytes)

    @property
    def length(self) -> int:
        return self.message_offset + padded(self.message_bytes)

    @property
    def identity(self) -> bytes:
        """The packed fields without checksums, which depend on the bytes on disk."""
        return replace(self, payload_crc=0)._fields()

    def pack(self) -> bytes:
        fields = self._fields()
        return fields + _CRC.pack(crc32c(fields))

    def _fields(self) -> bytes:
        return FIELDS.pack(
            MAGIC,
            VERSION,
            LOST * self.lost | ENCRYPTED * self.encrypted,
            0,
            self.state_bytes,
            self.message_bytes,
            self.count,
            self.payload_crc,
            self.term,
            self.first_seq,
            self.journal,
            0,
        )

    @classmethod
    def unpack(cls, data: Any, offset: int, journal: bytes) -> FrameHeader:
        """Return the header at ``offset``, with its checksum, journal and lengths checked. Raises
        BadFrameError, and UserError for an unknown format."""
        view = memoryview(data)[offset : offset + HEADER_BYTES]
        if len(view) < HEADER_BYTES:
            raise BadFrameError("the header is cut short")
        (magic, version, flags, _, state, message, count, payload, term, seq, owner, _) = (
            FIELDS.unpack_from(view)
        )
        if magic != MAGIC:
            raise BadFrameError("no frame begins here")
        if crc32c(view[: FIELDS.size]) != _CRC.unpack_from(view, FIELDS.size)[0]:
            raise BadFrameError("the header's checksum does not match")
        if version != VERSION or flags & ~_FLAGS:
            raise UserError(
                f"a journal has frames of format version {version} and flags {flags:#x}, this "
                f"flumeng reads version {VERSION} and flags {_FLAGS:#x}"
            )
        if owner != journal:
            raise BadFrameError("the frame belongs to another journal")
        lost, encrypted = bool(flags & LOST), bool(flags & ENCRYPTED)
        message_bytes = MAX_MESSAGE_BYTES + ENCRYPTION_BYTES * encrypted
        most = (0, 0, MAX_LOST) if lost else (MAX_STATE_BYTES, message_bytes, MAX_ROWS)
        if any(value > limit for value, limit in zip((state, message, count), most, strict=True)):
            raise BadFrameError("the header's lengths are out of bounds")
        if encrypted and (lost or message < ENCRYPTION_BYTES):
            raise BadFrameError("the frame is encrypted and has nothing to decrypt")
        return cls(owner, term, seq, count, state, message, payload, lost, encrypted)


@dataclass(frozen=True, slots=True)
class Payload:
    """A frame that has no seqs yet. ``state``: changed keys of source state; None deletes a key."""

    rows: int
    state: dict[str, object]
    state_bytes: int
    message: pa.Buffer
    parts: list[Any]
    crc: int

    @classmethod
    def encode(cls, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> Payload:
        """Encode events and state changes. Raises UserError for wrong schema or exceeded limits."""
        if batch.schema != EVENT_SCHEMA:
            raise UserError(f"a batch of events has unexpected columns: {batch.schema}")
        if batch.num_rows > MAX_ROWS:
            raise UserError(f"a batch has {batch.num_rows} rows, a frame holds {MAX_ROWS}")
        changes = dict(state or {})
        blob = encode_state(changes)
        message = _encode_batch(batch)
        if message.size > MAX_MESSAGE_BYTES:
            raise UserError(f"a batch has {message.size} bytes, a frame holds {MAX_MESSAGE_BYTES}")
        unpacked = unpacked_bytes(pa.ipc.read_message(message))
        if unpacked > MAX_UNPACKED_BYTES:
            raise UserError(f"a batch has {unpacked} bytes, a frame holds {MAX_UNPACKED_BYTES}")
        parts, crc = payload_of(blob, [message])
        return cls(batch.num_rows, changes, len(blob), message, parts, crc)

    @property
    def state_blob(self) -> bytes:
        blob: bytes = self.parts[0]
        return blob

    def at(self, journal: bytes, term: int, first_seq: int) -> tuple[FrameHeader, list[Any]]:
        header = FrameHeader(
            journal, term, first_seq, self.rows, self.state_bytes, self.message.size, self.crc
        )
        return header, [header.pack(), *self.parts]


def payload_of(state: Any, message: Sequence[Any]) -> tuple[list[Any], int]:
    size = sum(memoryview(part).nbytes for part in message)
    parts = [state, _padding(len(state)), *message, _padding(size)]
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return parts, crc


def verify(frame: pa.Buffer, journal: bytes) -> FrameHeader:
    """Return the header of a frame after checking every bit. Raises as ``FrameHeader.unpack``."""
    header = FrameHeader.unpack(frame, 0, journal)
    if header.length != frame.size:
        raise BadFrameError(f"the frame has {frame.size} bytes, its header says {header.length}")
    if crc32c(frame.slice(HEADER_BYTES)) != header.payload_crc:
        raise BadFrameError("the payload's checksum does not match")
    return header


def decode(frame: pa.Buffer, journal: bytes) -> tuple[FrameHeader, pa.RecordBatch]:
    """Return the header and events of a frame. Raises as ``verify`` and ``events``."""
    header = verify(frame, journal)
    return header, events(frame, header)


def events(frame: pa.Buffer, header: FrameHeader) -> pa.RecordBatch:
    """Return the events of a verified frame; uncompressed events are not copied if aligned. All
    offsets and lengths are validated, since a checksum does not prove that the writer was correct.
    Raises BadFrameError for invalid, lost or encrypted events, UnavailableError without memory."""
    if header.encrypted:
        raise BadFrameError(f"{header.count} events from seq {header.first_seq} on need their key")
    if header.lost:
        raise BadFrameError(
            f"{header.count} events from seq {header.first_seq} on are lost: a repair gave them up"
        )
    if frame.address % ALIGNMENT:
        moved = pa.allocate_buffer(frame.size)
        memoryview(moved)[:] = memoryview(frame)
        frame = moved
    try:
        message = pa.ipc.read_message(frame.slice(header.message_offset, header.message_bytes))
        unpacked = unpacked_bytes(message)
        if unpacked > MAX_UNPACKED_BYTES:
            raise BadFrameError(
                f"the events unpack to {unpacked} bytes, more than a frame may have"
            )
        batch = read_events(message)
        if batch.num_rows != header.count:
            raise BadFrameError(f"{batch.num_rows} events, but the header says {header.count}")
    except (MemoryError, pa.ArrowException, OSError, EOFError, CorruptError) as error:
        if is_shortage(error):
            raise UnavailableError(f"not enough memory for {header.count} events") from error
        raise BadFrameError(f"the record batch cannot be read: {error}") from error
    return batch


def read_events(message: pa.Message) -> pa.RecordBatch:
    """Return the events of a record batch in EVENT_SCHEMA, after a check of all its offsets, texts
    and times. Raises BadFrameError and pyarrow's errors."""
    batch = pa.ipc.read_record_batch(message, EVENT_SCHEMA)
    batch.validate(full=True)
    _require_times(batch)
    return batch if batch.num_rows else _NO_EVENTS  # Arrow does not check the offsets of no row


def _require_times(batch: pa.RecordBatch) -> None:
    """Raise BadFrameError for times outside of the years 1 to 9999: sinks need these."""
    times = batch.column(1)
    if len(times):
        micros = np.frombuffer(times.buffers()[1], np.int64, len(times), 8 * times.offset)
        if not _FIRST_US <= micros.min() <= micros.max() <= _LAST_US:
            raise BadFrameError("an event was received outside of the years 1 to 9999")


def encode_state(state: Mapping[str, object]) -> bytes:
    """Return source state as JSON, without any bytes when empty. Raises UserError above 16 MiB."""
    blob = json.dumps(state, separators=(",", ":")).encode() if state else b""
    if len(blob) > MAX_STATE_BYTES:
        raise UserError(f"the state of a source has {len(blob)} bytes, above {MAX_STATE_BYTES}")
    return blob


def decode_state(blob: Any) -> dict[str, object]:
    if not len(blob):
        return {}
    try:
        state = json.loads(bytes(blob))
    except (ValueError, RecursionError) as error:
        raise BadFrameError(f"the source state is not JSON: {error}") from error
    if not isinstance(state, dict):
        raise BadFrameError("the source state is not an object")
    return state


def encode_whole_state(state: Mapping[str, object]) -> bytes:
    """Return complete source state as JSON. Above 16 MiB it has several lines, encoded one by one
    so that other threads run in between. Raises UserError above 1 GiB."""
    entries = iter(state.items())
    parts = []
    while part := dict(itertools.islice(entries, STATE_KEYS_AT_ONCE)):
        parts.append(json.dumps(part, separators=(",", ":")).encode())
    if sum(map(len, parts)) <= MAX_STATE_BYTES:
        return b"{%s}" % b",".join([part[1:-1] for part in parts]) if parts else b""
    blob = b"\n".join(parts)
    if len(blob) > MAX_WHOLE_STATE_BYTES:
        raise UserError(f"source states have {len(blob)} bytes, above {MAX_WHOLE_STATE_BYTES}")
    return blob


def decode_whole_state(blob: bytes) -> dict[str, object]:
    state: dict[str, object] = {}
    for part in blob.split(b"\n"):
        state.update(decode_state(part))
    return state


def _padding(length: int) -> bytes:
    return _ZEROS[: padded(length) - length]


def _encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    options = _LZ4 if _lz4_pays(batch) else _PLAIN
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, EVENT_SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    return stream.slice(_PROLOGUE_BYTES, stream.size - _PROLOGUE_BYTES - _END_BYTES)


def _lz4_pays(batch: pa.RecordBatch) -> bool:
    if batch.nbytes < _LZ4_FROM_BYTES:
        return False
    bodies = batch.column(0)
    _, offsets, data = bodies.buffers()
    bounds = memoryview(offsets).cast("i")
    first, last = bounds[bodies.offset], bounds[bodies.offset + len(bodies)]
    size = last - first
    if size < _LZ4_FROM_BYTES:
        return True
    sample = data.slice(first, min(size, _SAMPLE_BYTES))
    saved = size * (1 - _SAMPLER.compress(sample).size / sample.size) + _repeated_bytes(batch)
    return bool(saved > _LEAST_SAVED * batch.nbytes)


def _repeated_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of hosts and attributes; for a slice, those of the whole array."""
    texts = batch.column(2), batch.column(3).keys, batch.column(3).items
    return sum(column.buffers()[2].size for column in texts)


def _prologue_bytes() -> int:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, EVENT_SCHEMA):
        pass
    return int(sink.getvalue().size) - _END_BYTES


# A stream is schema message, record-batch message, end mark; only the middle is stored.
_END_BYTES = 8
_PROLOGUE_BYTES = _prologue_bytes()


def unpacked_bytes(message: pa.Message) -> int:
    """Return the bytes of memory that a record batch needs when unpacked; 0 when it is
    uncompressed. Raises CorruptError for another kind of message and for an invalid flatbuffer."""
    if message.type != "record batch":
        raise CorruptError(f"the Arrow message is no record batch but a {message.type}")
    if (version := message.metadata_version) != pa.ipc.MetadataVersion.V5:  # V4 hides its codec
        raise CorruptError(f"the Arrow message has metadata version {version.name}, not V5")
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
        raise CorruptError(f"the metadata of the Arrow message is inconsistent: {error}") from error


def _field(data: Any, table: int, number: int) -> int:
    """Return the position of a field in a flatbuffer table; 0 when the field has its default."""
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
