"""Whatever bytes lie in a journal's files or arrive in a ticket: a typed error, never wrong data.

Protects I16, I17 and I22 against damage that nobody thought of.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.errors import CorruptError, FlumengError, UserError
from flumeng.journal.frame import BadFrameError, decode, encode, identity
from flumeng.journal.journal import Journal
from flumeng.journal.server import parse_ticket
from flumeng.journal.testing import numbered_events

ID = "web.n1.0.0a1b2c3d"
JOURNAL = identity(ID)
FRAMES, ROWS = 12, 4


def whole_frame() -> bytes:
    _, parts = encode(JOURNAL, 1, 0, numbered_events(0, ROWS), {"cursor": 1})
    return b"".join(bytes(part) for part in parts)


def whole_journal() -> dict[str, bytes]:
    """The files of a synced journal of several segments."""
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal.create(Path(directory), ID, segment_bytes=4096)
        for first in range(0, FRAMES * ROWS, ROWS):
            journal.append(numbered_events(first, ROWS))
        journal.close()
        return {path.name: path.read_bytes() for path in (Path(directory) / ID).iterdir()}


FRAME = whole_frame()
FILES = whole_journal()


@given(st.binary(max_size=300))
def test_no_bytes_pass_for_a_frame(data: bytes) -> None:
    with pytest.raises(BadFrameError):
        decode(pa.py_buffer(data), JOURNAL)


@given(at=st.integers(0, len(FRAME) - 1), patch=st.binary(min_size=1, max_size=40))
def test_no_overwritten_part_of_a_frame_passes(at: int, patch: bytes) -> None:
    damaged = (FRAME[:at] + patch + FRAME[at + len(patch) :])[: len(FRAME)]
    if damaged != FRAME:
        with pytest.raises((BadFrameError, UserError)):
            decode(pa.py_buffer(damaged), JOURNAL)


@settings(deadline=None, max_examples=150)
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
            journal = Journal.open(path)
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
        name, start, end = parse_ticket(ticket)
    except FlumengError:
        return
    assert isinstance(name, str)
    assert 0 <= start <= end
