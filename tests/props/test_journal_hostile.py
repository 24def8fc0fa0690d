"""Frames with right checksums and inconsistent events: from a writer with a bug, or made on
purpose. A typed error and bounded memory, never a crash, never a value that is not there.

``FLUMENG_TEST_EXAMPLES`` says how much is tried.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log import reading
from flumeng.journal.log.frame import (
    HEADER_BYTES,
    MAX_UNPACKED_BYTES,
    FrameHeader,
    Payload,
    decode,
    decode_state,
    identity,
    padded,
)
from flumeng.journal.log.inspection import Finding, dump, inspect
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.repair import repair
from flumeng.platform.errors import CorruptError, UserError
from tests.testkit.arrow_messages import bent, stream_of, with_hidden_codec
from tests.testkit.journal import numbered_events

EXAMPLES = int(os.environ.get("FLUMENG_TEST_EXAMPLES", "20000"))
SECONDS = 10.0 if EXAMPLES <= 20_000 else 3600.0
SLACK_BYTES = 64 << 20

ID = "web.n1.0.0a1b2c3d"
ROWS = 24


def message_of(rows: int = ROWS, body_bytes: int = 12) -> bytes:
    """The message as in a frame, with LZ4 from 4 KiB on."""
    header, parts = Payload.encode(numbered_events(0, rows, body_bytes)).at(identity(ID), 1, 0)
    frame = b"".join(bytes(part) for part in parts)
    return frame[header.message_offset :][: header.message_bytes]


def frame_of(message: bytes, rows: int = ROWS) -> pa.Buffer:
    """A frame with the message and correct checksums."""
    payload = message.ljust(padded(len(message)), b"\0")
    header = FrameHeader(identity(ID), 1, 0, rows, 0, len(message), crc32c(payload))
    return pa.py_buffer(header.pack() + payload)


def read(message: bytes, rows: int = ROWS) -> list[dict[str, Any]]:
    """Its events with every value decoded. Raises the errors of a reader."""
    frames = [frame_of(message, rows)]
    batches = reading.rows(frames, ID, 0, rows, replayed=False)
    return [event for batch in batches for event in batch.to_pylist()]


@pytest.fixture
def bounded() -> Iterator[None]:
    """Arrow takes no more memory than allowed, for any size that a frame claims."""
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    yield
    assert pool.max_memory() <= max(before, MAX_UNPACKED_BYTES + SLACK_BYTES)


PLAIN = message_of()
PACKED = message_of(body_bytes=600)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("message", [PLAIN, PACKED], ids=["plain", "packed"])
def test_no_message_with_a_right_checksum_breaks_the_reader(message: bytes) -> None:
    chance = random.Random(16)
    deadline = time.monotonic() + SECONDS / 2
    refused = taken = 0
    for number in range(EXAMPLES // 2):
        hostile = bent(message, chance)
        try:
            events = read(hostile)
        except CorruptError:
            refused += 1
        else:
            taken += 1
            assert len(events) == ROWS, f"message {number}"
        if time.monotonic() > deadline:
            break
    assert refused > taken / 10
    assert refused + taken >= min(1000, EXAMPLES // 2), "too slow to mean anything"


def patched(old: bytes, new: bytes, message: bytes = PLAIN) -> bytes:
    assert old in message
    return message.replace(old, new.ljust(len(old), b"\0"), 1)


def body_ends(*ends: int) -> bytes:
    return struct.pack(f"<{len(ends)}i", *ends)


BODIES_BYTES = ROWS * 600
TIMES_BYTES = ROWS * 8


def unpacks_to(claimed: int, truly: int = BODIES_BYTES, message: bytes = PACKED) -> bytes:
    """A message whose column claims another unpacked size."""
    length = struct.pack("<q", truly)
    (at,) = (at for at in range(0, len(message), 8) if message[at : at + 8] == length)
    return message[:at] + struct.pack("<q", claimed) + message[at + 8 :]


def with_columns(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "zeros": lambda: bytes(640),
    "no message": lambda: b"\xff" * 640,
    "a body ends behind all bodies": lambda: patched(
        body_ends(0, 12, 24, 36), body_ends(0, 12, 2**31 - 1, 36)
    ),
    "a body ends before it begins": lambda: patched(
        body_ends(0, 12, 24, 36), body_ends(0, 12, 4, 36)
    ),
    "a body begins before all bodies": lambda: patched(
        body_ends(0, 12, 24, 36), body_ends(-(2**31), 12, 24, 36)
    ),
    "the last body ends elsewhere": lambda: patched(
        body_ends(22 * 12, 23 * 12, 24 * 12), body_ends(22 * 12, 23 * 12, 2**30)
    ),
    "attributes of other rows": lambda: patched(
        struct.pack("<4i", 0, 1, 2, 3), struct.pack("<4i", 0, 1, 2**30, 3)
    ),
    "a host that is no text": lambda: patched(b"hosthost", b"\xff\xfe\xff\xffhost"),
    "a time that no calendar has": lambda: patched(
        struct.pack("<3q", 1, 2, 3), struct.pack("<3q", 1, 2**60, 3)
    ),
    "fewer rows": lambda: message_of(rows=ROWS - 1),
    "more rows": lambda: message_of(rows=ROWS + 1),
    "rows without end": lambda: PLAIN.replace(struct.pack("<q", ROWS), struct.pack("<q", 2**62)),
    "a schema": lambda: stream_of(numbered_events(0, ROWS))[0],
    "a dictionary": lambda: stream_of(with_columns(x=pa.array(["a"] * ROWS).dictionary_encode()))[
        1
    ],
    "other columns": lambda: stream_of(with_columns(x=pa.array(range(ROWS))))[1],
    "numbers for bodies": lambda: stream_of(
        with_columns(**dict.fromkeys("abcd", pa.array(range(ROWS))))
    )[1],
    "unpacks to 2^62": lambda: unpacks_to(2**62),
    "unpacks to more than is allowed": lambda: unpacks_to(4 * MAX_UNPACKED_BYTES),
    "unpacks to more than is allowed, and to less than nothing": lambda: unpacks_to(
        -(2**62), TIMES_BYTES, unpacks_to(4 * MAX_UNPACKED_BYTES)
    ),
    "unpacks to less than it holds": lambda: unpacks_to(BODIES_BYTES - 8),
    "unpacks to a negative length": lambda: unpacks_to(-2),
    "unpacks to what was never packed": lambda: unpacks_to(-1),
    "hides its codec": lambda: with_hidden_codec(numbered_events(0, ROWS, 600), "lz4"),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("kind", HOSTILE)
def test_inconsistent_events_are_damage(kind: str) -> None:
    with pytest.raises(CorruptError, match=f"journal {ID}, at or after seq 0: "):
        read(HOSTILE[kind]())


@pytest.mark.parametrize("state", [b"{", b"[]", b"\xff", b"[" * 200_000, b"1" * 10_000])
def test_invalid_source_state_is_damage(state: bytes) -> None:
    with pytest.raises(CorruptError, match="source state"):
        decode_state(state)


def test_offsets_of_no_event_are_not_followed() -> None:
    """Arrow does not check them, and would read there for the size of the batch."""
    message = bytearray(message_of(rows=0))
    for at in range(len(message) - 40, len(message), 8):  # the offsets of all columns
        message[at : at + 4] = struct.pack("<i", 2**30)
    _, events = decode(frame_of(bytes(message), rows=0), identity(ID))
    assert (events.num_rows, events.nbytes) == (0, 0)


def test_unaltered_messages_of_these_tests_are_readable() -> None:
    """So that a refusal of an altered message comes of its alteration."""
    expected = [b"%d" % seq for seq in range(ROWS)]
    for message in (PLAIN, PACKED):
        assert [event["body"].rstrip(b".") for event in read(message)] == expected
    assert len(read(stream_of(numbered_events(0, ROWS), compression="zstd")[1])) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("body_bytes", [200 << 10, 4 << 20])
def test_events_of_any_size_are_gathered_in_little_memory(body_bytes: int) -> None:
    """Frames of few rows with large bodies: many of them would be joined to one of gigabytes."""
    rows, frames = 4, 60
    message = message_of(rows, body_bytes)
    header = FrameHeader.unpack(frame_of(message, rows), 0, identity(ID))
    payload = frame_of(message, rows).slice(HEADER_BYTES).to_pybytes()

    def endless() -> Iterator[pa.Buffer]:
        for number in range(frames):
            placed = replace(header, first_seq=number * rows)
            yield pa.py_buffer(placed.pack() + payload)

    before = pa.default_memory_pool().bytes_allocated()
    for batch in reading.rows(endless(), ID, 0, frames * rows, replayed=False):
        held = pa.default_memory_pool().bytes_allocated() - before
        assert held < 16 << 20 or held < 3 * rows * body_bytes, f"at seq {batch.column('seq')[0]}"


@pytest.mark.slow
def test_batch_that_no_reader_could_unpack_is_not_written() -> None:
    """A batch that packs well is still one that a reader has to unpack."""
    value = pa.array(["x" * 9000])
    attrs = pa.MapArray.from_arrays(
        pa.array(range(65_537), pa.int32()), pa.repeat("k", 65_536), pa.repeat(value[0], 65_536)
    )
    small = numbered_events(0, 65_536)
    batch = pa.RecordBatch.from_arrays([*small.columns[:3], attrs], schema=EVENT_SCHEMA)
    with pytest.raises(UserError, match="a frame holds"):
        Payload.encode(batch)


def test_journal_with_such_a_frame_is_damaged_there_and_can_be_repaired(tmp_path: Path) -> None:
    """Otherwise its readers would stand still, and no repair could help them."""
    journal = Journal.create(tmp_path, ID)
    for first in range(0, 3 * ROWS, ROWS):
        journal.append(numbered_events(first, ROWS))
    journal.close()
    (file,) = (tmp_path / ID).glob("*.segment")
    content = file.read_bytes()
    at = [at for at in range(0, len(content), 64) if content[at : at + 4] == b"FLFR"][1]
    header = FrameHeader.unpack(content, at, identity(ID))
    message = HOSTILE["a body ends behind all bodies"]()
    payload = message.ljust(padded(len(message)), b"\0")
    crafted = replace(header, payload_crc=crc32c(payload)).pack() + payload
    assert len(crafted) == header.length
    file.write_bytes(content[:at] + crafted + content[at + header.length :])

    found_at = {finding.offset for finding in inspect(tmp_path / ID).findings if finding.damage}
    assert at in found_at
    assert [type(found) for found in dump(tmp_path / ID)] == [tuple, Finding, tuple]
    journal = Journal.open(tmp_path / ID)
    with pytest.raises(CorruptError, match=f"at or after seq {ROWS}: "):
        list(journal.read(0, 3 * ROWS))
    journal.close()
    assert repair(tmp_path / ID, accept_loss=True).lost == ((ROWS, 2 * ROWS),)
    journal = Journal.open(tmp_path / ID)
    found = [seq for batch in journal.read(0, 3 * ROWS) for seq in batch.column("seq").to_pylist()]
    assert found == [*range(ROWS), *range(2 * ROWS, 3 * ROWS)]
    journal.close()
