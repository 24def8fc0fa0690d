"""Any bytes in a journal's files or in a ticket: a typed error, never wrong data.

The damage is random. ``FLUMENG_TEST_EXAMPLES`` says how much of each kind is tried.
"""

from __future__ import annotations

import os
import random
import struct
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.journal.log import segment
from flumeng.journal.log.checkpoint import NAME, Checkpoint
from flumeng.journal.log.encryption import Key, Keyring, Sealer
from flumeng.journal.log.errors import KeyMissingError
from flumeng.journal.log.frame import (
    MAX_STATE_BYTES,
    BadFrameError,
    FrameHeader,
    Payload,
    decode,
    identity,
    verify,
)
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.segment import SUFFIX
from flumeng.journal.serving.wire import parse_ticket
from flumeng.platform.errors import CorruptError, FlumengError, UserError
from tests.testkit.journal import FaultyDisk, numbered_events

EXAMPLES = int(os.environ.get("FLUMENG_TEST_EXAMPLES", "0"))
FLIPS = EXAMPLES or 3000
fuzzing = settings(deadline=None, max_examples=EXAMPLES or 150)

ID = "web.n1.0.0a1b2c3d"
JOURNAL = identity(ID)
FRAMES, ROWS = 12, 4


def whole_frame() -> bytes:
    _, parts = Payload.encode(numbered_events(0, ROWS), {"cursor": 1}).at(JOURNAL, 1, 0)
    return b"".join(bytes(part) for part in parts)


def whole_journal() -> dict[str, bytes]:
    """The files of a synced journal of several segments."""
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal.create(Path(directory), ID, segment_bytes=4096)
        for first in range(0, FRAMES * ROWS, ROWS):
            journal.append(numbered_events(first, ROWS))
        journal.close()
        return {path.name: path.read_bytes() for path in (Path(directory) / ID).iterdir()}


def with_crc(block: bytes) -> bytes:
    return block + struct.pack("<I", crc32c(block))


def encrypted_frame() -> tuple[FrameHeader, bytes]:
    payload = Payload.encode(numbered_events(0, ROWS))
    header, _ = payload.at(JOURNAL, 1, 0)
    header, parts = Sealer(RING.current, JOURNAL).seal(header, b"", payload.message)
    return header, b"".join(bytes(part) for part in parts)


RING = Keyring({"${secret:key}": Key.parse("0a" * 32, "")})
SEALED, SEALED_FRAME = encrypted_frame()
FRAME = whole_frame()
FILES = whole_journal()


@fuzzing
@given(st.binary(max_size=300))
def test_no_bytes_pass_for_a_frame(data: bytes) -> None:
    with pytest.raises(BadFrameError):
        decode(pa.py_buffer(data), JOURNAL)


@fuzzing
@given(
    at=st.integers(64, SEALED.message_offset + SEALED.message_bytes - 1),
    patch=st.binary(min_size=1, max_size=60),
)
def test_no_overwritten_part_of_an_encrypted_frame_passes_with_right_checksums(
    at: int, patch: bytes
) -> None:
    """An attacker without a key can make checksums, and nothing else; padding belongs to no
    event."""
    end = SEALED.message_offset + SEALED.message_bytes
    damaged = (SEALED_FRAME[:at] + patch + SEALED_FRAME[at + len(patch) :])[:end]
    if damaged != SEALED_FRAME[:end]:
        payload = damaged[64:] + SEALED_FRAME[end:]
        header = replace(SEALED, payload_crc=crc32c(payload))
        frame = pa.py_buffer(header.pack() + payload)
        assert verify(frame, JOURNAL) == header
        with pytest.raises((BadFrameError, KeyMissingError)):
            RING.opened(frame, header)


@fuzzing
@given(
    first=st.integers(0, 2**63 - 1) | st.just(0),
    term=st.integers(0, 2**63 - 1) | st.just(1),
    count=st.integers(0, 65_536) | st.just(ROWS),
)
def test_encrypted_frame_is_accepted_at_its_own_place_only(
    first: int, term: int, count: int
) -> None:
    header = replace(SEALED, first_seq=first, term=term, count=count)
    frame = pa.py_buffer(header.pack() + SEALED_FRAME[64:])
    if header == SEALED:
        opened, plain = RING.opened(frame, header)
        assert decode(opened, JOURNAL)[0] == plain
    else:
        with pytest.raises(BadFrameError):
            RING.opened(frame, header)


@fuzzing
@given(at=st.integers(0, len(FRAME) - 1), patch=st.binary(min_size=1, max_size=40))
def test_no_overwritten_part_of_a_frame_passes(at: int, patch: bytes) -> None:
    damaged = (FRAME[:at] + patch + FRAME[at + len(patch) :])[: len(FRAME)]
    if damaged != FRAME:
        with pytest.raises((BadFrameError, UserError)):
            decode(pa.py_buffer(damaged), JOURNAL)


@fuzzing
@given(
    name=st.sampled_from(sorted(name for name in FILES if name != "lock")),
    place=st.floats(0, 1, exclude_max=True),
    patch=st.binary(min_size=1, max_size=80),
    cut=st.booleans(),
)
def test_damage_to_synced_files_is_refused_or_found_on_reading(
    name: str, place: float, patch: bytes, cut: bool
) -> None:
    original = FILES[name]
    at = int(place * len(original))
    damaged = original[:at] + (b"" if cut else patch + original[at + len(patch) :])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / ID
        path.mkdir()
        for other, content in FILES.items():
            (path / other).write_bytes(damaged if other == name else content)
        try:
            journal = Journal.open(path, disk=FaultyDisk())
        except (CorruptError, UserError):
            assert (path / name).read_bytes() == damaged
            return
        try:
            batches = list(journal.read(0, FRAMES * ROWS))
        except CorruptError:
            return
        finally:
            journal.close()
        bodies = [body.as_py().rstrip(b".") for batch in batches for body in batch.column("body")]
        assert bodies == [b"%d" % seq for seq in range(FRAMES * ROWS)]


@given(st.binary(max_size=100) | st.text(max_size=50).map(str.encode))
def test_no_bytes_break_the_ticket_parser(ticket: bytes) -> None:
    try:
        wanted = parse_ticket(ticket)
    except FlumengError:
        return
    assert isinstance(wanted.journal, str)
    assert 0 <= wanted.start <= wanted.end


def varied_journal() -> dict[str, bytes]:
    """Several segments, some frames compressed, some with source state."""
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal.create(Path(directory), ID, segment_bytes=9000)
        for turn in range(9):
            rows = 3 if turn % 2 else 60
            journal.append(numbered_events(journal.next_seq, rows, 200), {"turn": turn})
        journal.close()
        files = {path.name: path.read_bytes() for path in (Path(directory) / ID).iterdir()}
        return {name: files[name] for name in files if name == NAME or name.endswith(SUFFIX)}


def test_of_thousands_of_flipped_bits_none_becomes_wrong_data(tmp_path: Path) -> None:
    """Arrow alone takes four of five of them for other events."""
    files = varied_journal()
    path = tmp_path / ID
    path.mkdir()

    def opened(damaged: dict[str, bytes]) -> Journal:
        for left in path.iterdir():
            left.unlink()
        for name, content in damaged.items():
            (path / name).write_bytes(content)
        return Journal.open(path, disk=FaultyDisk(), keep_free_bytes=0)

    whole = opened(files)
    end, state = whole.safe, dict(whole.state)
    events = pa.Table.from_batches(whole.read(0, end)).combine_chunks()
    whole.close()
    chance = random.Random(3000)
    places = [(name, bit) for name, content in files.items() for bit in range(8 * len(content))]
    unnoticed = 0
    for name, bit in chance.choices(places, k=FLIPS):
        content = bytearray(files[name])
        content[bit // 8] ^= 1 << bit % 8
        try:
            journal = opened({**files, name: bytes(content)})
        except (CorruptError, UserError):
            assert (path / name).read_bytes() == content, "evidence was changed"
            continue
        try:
            found = pa.Table.from_batches(journal.read(0, end)).combine_chunks()
        except CorruptError:
            continue
        finally:
            journal.close()
        assert (found, dict(journal.state)) == (events, state), f"bit {bit} of {name}"
        unnoticed += 1
    assert unnoticed < FLIPS / 50, "only padding may be flipped without notice"


@fuzzing
@given(
    data=st.binary(max_size=400),
    state_bytes=st.integers(0, 2**32 - 1),
    state_crc=st.none() | st.integers(0, 2**32 - 1),
)
def test_no_bytes_pass_for_a_segment(data: bytes, state_bytes: int, state_crc: int | None) -> None:
    """Nor do they take more memory than source state may have, for any header."""
    crc = crc32c(data) if state_crc is None else state_crc
    fields = segment.FIELDS.pack(
        segment.MAGIC, segment.VERSION, 0, 0, state_bytes, crc, 1, 0, JOURNAL, 0, 0, 0, 0
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / segment.file_name(0)
        for content in (data, fields + struct.pack("<I", crc32c(fields)) + data):
            path.write_bytes(content)
            tracemalloc.start()
            try:
                _, state = segment.open_segment(path, JOURNAL)
                assert isinstance(state, dict)
            except (CorruptError, UserError):
                pass
            finally:
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            assert peak < MAX_STATE_BYTES + (4 << 20)


@fuzzing
@given(st.binary(max_size=600) | st.binary(min_size=508, max_size=508).map(with_crc))
def test_no_bytes_break_the_checkpoint(block: bytes) -> None:
    try:
        said = Checkpoint.unpack(block, JOURNAL, Path("checkpoint"))
    except (CorruptError, UserError):
        return
    assert said.journal == JOURNAL
