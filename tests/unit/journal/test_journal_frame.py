"""A frame holds its events, or it is refused: no flipped bit, foreign frame or wild length passes.

The checksum covers content and identity, and lengths are bounded before memory is allocated.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    MAX_ROWS,
    BadFrameError,
    FrameHeader,
    Payload,
    decode,
    identity,
    verify,
)
from flumeng.platform.errors import UserError
from tests.testkit.journal import numbered_events

JOURNAL = identity("web.n1.0.0a1b2c3d")


def frame_of(batch: pa.RecordBatch, state: dict[str, object] | None = None) -> pa.Buffer:
    _, parts = Payload.encode(batch, state).at(JOURNAL, 3, 70)
    return pa.py_buffer(b"".join(bytes(part) for part in parts))


def random_events(count: int) -> pa.RecordBatch:
    events = numbered_events(0, count)
    bodies = pa.array([os.urandom(200) for _ in range(count)], pa.binary())
    return pa.RecordBatch.from_arrays([bodies, *events.columns[1:]], schema=EVENT_SCHEMA)


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
def test_events_are_read_back_as_written(count: int) -> None:
    events = numbered_events(0, count, body_bytes=200)
    header, batch = decode(frame_of(events, {"cursor": [1, 2]}), JOURNAL)
    assert batch.equals(events)
    assert (header.first_seq, header.end, header.term) == (70, 70 + count, 3)


def test_slice_of_a_batch_is_stored_alone() -> None:
    events = numbered_events(0, 5000, body_bytes=200)
    _, batch = decode(frame_of(events.slice(4990, 5)), JOURNAL)
    assert batch.equals(numbered_events(4990, 5, body_bytes=200))


def test_each_frame_part_begins_aligned() -> None:
    _, parts = Payload.encode(numbered_events(0, 3), {"path": "x" * 100}).at(JOURNAL, 1, 0)
    header, state, pad, message, end_pad = (len(memoryview(part)) for part in parts)
    assert header == HEADER_BYTES == ALIGNMENT
    assert (state + pad) % ALIGNMENT == (message + end_pad) % ALIGNMENT == 0


@pytest.mark.slow
def test_lack_of_memory_is_no_damage(tmp_path: Path) -> None:
    """In a process of its own: its memory is limited, and Arrow takes none in advance."""
    zeros = pa.array([bytes(1 << 20)] * 200, pa.binary())
    columns = [zeros, *numbered_events(0, 200).columns[1:]]
    frame = frame_of(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
    (tmp_path / "frame").write_bytes(frame.to_pybytes())
    given = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-c", DECODE_WITHOUT_MEMORY, str(tmp_path / "frame")]
    result = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert result.stdout == "not enough memory for 200 events\n", result.stderr


DECODE_WITHOUT_MEMORY = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from flumeng.journal.log.frame import decode, identity
from flumeng.platform.errors import UnavailableError

frame = pa.py_buffer(Path(sys.argv[1]).read_bytes())
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (50 << 20), -1))
try:
    decode(frame, identity("web.n1.0.0a1b2c3d"))
except UnavailableError as error:
    print(error)
"""


def test_every_flipped_bit_is_noticed() -> None:
    good = frame_of(numbered_events(0, 2), {"cursor": 1})
    for bit in range(good.size * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BadFrameError, UserError)):
            decode(pa.py_buffer(damaged), JOURNAL)


def test_a_frame_cut_short_anywhere_is_noticed() -> None:
    good = frame_of(numbered_events(0, 2))
    for size in range(good.size):
        with pytest.raises(BadFrameError):
            decode(good.slice(0, size), JOURNAL)


def test_a_frame_of_another_journal_is_refused() -> None:
    with pytest.raises(BadFrameError, match="another journal"):
        decode(frame_of(numbered_events(0, 2)), identity("web.n2.0.0a1b2c3d"))


EMPTY = FrameHeader(JOURNAL, 1, 0, count=0, state_bytes=0, message_bytes=0, payload_crc=0)
WILD = 0xFFFF_FFFF


@pytest.mark.parametrize(
    "wild",
    [
        replace(EMPTY, state_bytes=WILD),
        replace(EMPTY, message_bytes=WILD),
        replace(EMPTY, count=WILD),
    ],
)
def test_out_of_bounds_length_is_refused_by_its_header_alone(wild: FrameHeader) -> None:
    with pytest.raises(BadFrameError, match="out of bounds"):
        FrameHeader.unpack(wild.pack(), 0, JOURNAL)


def test_a_frame_of_a_newer_format_is_refused_by_name() -> None:
    newer = bytearray(frame_of(numbered_events(0, 1)))
    newer[4] = 2
    struct.pack_into("<I", newer, HEADER_BYTES - 4, crc32c(newer[: HEADER_BYTES - 4]))
    with pytest.raises(UserError, match="format version 2"):
        verify(pa.py_buffer(newer), JOURNAL)


def test_a_batch_over_the_limits_is_refused_before_it_is_written() -> None:
    with pytest.raises(UserError, match="rows"):
        frame_of(numbered_events(0, MAX_ROWS + 1))
    with pytest.raises(UserError, match="columns"):
        frame_of(pa.RecordBatch.from_pydict({"body": ["x"]}))


@pytest.mark.parametrize(
    ("events", "compressed"),
    [
        (numbered_events(0, 5000, body_bytes=200), True),
        (random_events(1000), False),
        (numbered_events(0, 3, body_bytes=200), False),
    ],
    ids=["text", "random bodies", "a few rows"],
)
def test_lz4_is_used_where_it_pays(events: pa.RecordBatch, compressed: bool) -> None:
    frame = frame_of(events)
    assert (frame.size < events.nbytes) == compressed
    _, batch = decode(frame, JOURNAL)
    assert batch.equals(events)


def test_columns_are_aligned_when_the_frame_is_not() -> None:
    frame = frame_of(random_events(100))
    shifted = pa.py_buffer(b"-" + frame.to_pybytes()).slice(1)
    _, batch = decode(shifted, JOURNAL)
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
    assert {buffer.address % 8 for buffer in buffers} == {0}
