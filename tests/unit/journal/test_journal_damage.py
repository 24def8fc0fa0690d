"""Every field of every header of a synced journal, changed: found, never served, never repaired by
forgetting.

Each case edits the files of a closed journal of several segments.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import frame, segment
from flumeng.journal.log.journal import Journal
from flumeng.platform.errors import CorruptError, UserError
from tests.testkit.journal import numbered_events

ID = "web.n1.0.0a1b2c3d"
ROWS = 4
FRAMES = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three segments or more, each with source state."""
    journal = Journal.create(tmp_path, ID, segment_bytes=3000)
    for turn in range(FRAMES):
        journal.append(numbered_events(turn * ROWS, ROWS), {"turn": turn})
    journal.close()
    assert len(segments(tmp_path / ID)) >= 3
    return tmp_path / ID


def segments(path: Path) -> list[Path]:
    return sorted(path.glob(f"*{segment.SUFFIX}"))


def frame_offsets(content: bytes) -> list[int]:
    return [at for at in range(0, len(content), 64) if content[at : at + 4] == frame.MAGIC]


def flipped(file: Path, begin: int, end: int) -> Iterator[int]:
    """Flip one bit of each byte in turn; the file is restored afterwards."""
    whole = file.read_bytes()
    with file.open("r+b", buffering=0) as writer:
        for at in range(begin, end):
            writer.seek(at)
            writer.write(bytes([whole[at] ^ 1 << at % 8]))
            yield at
            writer.seek(at)
            writer.write(whole[at : at + 1])


def check_refused(path: Path) -> None:
    """Opening is refused, and no file changes."""
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises((CorruptError, UserError)):
        Journal.open(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_damage_of_any_byte_of_the_checkpoint_is_refused(path: Path) -> None:
    for _ in flipped(path / checkpoints.NAME, 0, checkpoints.BLOCK_BYTES):
        check_refused(path)


@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "last"])
def test_damage_of_any_byte_of_a_segments_header_and_state_is_refused(
    path: Path, which: int
) -> None:
    file = segments(path)[which]
    state_bytes = struct.unpack_from("<I", file.read_bytes(), 8)[0]
    for _ in flipped(file, 0, segment.SEGMENT_HEADER_BYTES + state_bytes):
        check_refused(path)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, -1], ids=["first frame", "last frame"])
def test_damage_of_any_byte_of_a_frame_in_the_newest_segment_is_refused(
    path: Path, which: int
) -> None:
    file = segments(path)[-1]
    bounds = [*frame_offsets(file.read_bytes()), file.stat().st_size]
    begin, end = (bounds[0], bounds[1]) if which == 0 else (bounds[-2], bounds[-1])
    for _ in flipped(file, begin, end):
        check_refused(path)


def test_damage_of_the_last_frames_header_in_an_older_segment_is_refused(path: Path) -> None:
    file = segments(path)[0]
    last = frame_offsets(file.read_bytes())[-1]
    for _ in flipped(file, last, last + frame.HEADER_BYTES):
        check_refused(path)


def test_damage_of_another_frame_in_an_older_segment_is_never_served(path: Path) -> None:
    """A reader finds it, also in a journal that is open."""
    file = segments(path)[0]
    begin, end = frame_offsets(file.read_bytes())[:2]
    journal = Journal.open(path)
    for _ in flipped(file, begin, end):
        with pytest.raises((CorruptError, UserError)):
            list(journal.read(0, ROWS))
    assert sum(batch.num_rows for batch in journal.read(0, journal.safe)) == FRAMES * ROWS
    journal.close()


SEGMENT_FIELDS = {
    "version": (4, "<B"),
    "state bytes": (8, "<I"),
    "state crc": (12, "<I"),
    "base": (24, "<Q"),
    "owner": (32, "<Q"),
    "predecessor's base": (48, "<Q"),
    "predecessor's length": (56, "<Q"),
    "predecessor's last frame": (64, "<Q"),
    "predecessor's last checksum": (72, "<I"),
}


@pytest.mark.parametrize("field", SEGMENT_FIELDS)
@pytest.mark.parametrize("change", [1, 64, -64])
def test_wrong_field_of_a_segment_header_with_a_right_checksum_is_refused(
    path: Path, field: str, change: int
) -> None:
    """As in a segment that was written for another place or at another time."""
    file = segments(path)[1]
    at, form = SEGMENT_FIELDS[field]
    content = bytearray(file.read_bytes())
    (value,) = struct.unpack_from(form, content, at)
    limit = 1 << 8 * struct.calcsize(form)
    struct.pack_into(form, content, at, (value + change) % limit)
    struct.pack_into("<I", content, 124, crc32c(content[:124]))
    file.write_bytes(content)
    check_refused(path)


CHECKPOINT_FIELDS = {"version": 4, "segment": 16, "offset": 24, "floor": 40, "owner": 48}


@pytest.mark.parametrize("field", CHECKPOINT_FIELDS)
def test_wrong_field_of_the_checkpoint_with_a_right_checksum_is_refused(
    path: Path, field: str
) -> None:
    file = path / checkpoints.NAME
    content = bytearray(file.read_bytes())
    content[CHECKPOINT_FIELDS[field]] += 1
    struct.pack_into("<I", content, 508, crc32c(content[:508]))
    file.write_bytes(content)
    check_refused(path)


@pytest.mark.parametrize("swap", [(0, 1), (1, 1)], ids=["older", "the same again"])
def test_frame_of_the_newest_segment_in_anothers_place_is_refused(
    path: Path, swap: tuple[int, int]
) -> None:
    file = segments(path)[-1]
    content = file.read_bytes()
    offsets = [*frame_offsets(content), len(content)]
    frames = [content[begin:end] for begin, end in itertools.pairwise(offsets)]
    assert len(frames) >= 2
    source, target = swap
    frames.insert(target, frames[source])
    file.write_bytes(content[: offsets[0]] + b"".join(frames))
    check_refused(path)


def test_repeated_segment_under_another_name_is_refused(path: Path) -> None:
    first, second, *_ = segments(path)
    between = path / segment.file_name(int(first.stem) + 1)
    between.write_bytes(second.read_bytes())
    check_refused(path)


def test_segment_of_this_journals_future_is_refused(path: Path, tmp_path: Path) -> None:
    """From a copy that went on by itself, say."""
    other = Journal.create(tmp_path / "copy", ID, segment_bytes=3000)
    while len(segments(tmp_path / "copy" / ID)) <= len(segments(path)):
        other.append(numbered_events(other.next_seq, ROWS, body_bytes=20), {"turn": 0})
    other.close()
    newest = segments(tmp_path / "copy" / ID)[-1]
    (path / newest.name).write_bytes(newest.read_bytes())
    check_refused(path)
