"""Frames of a journal that another process writes: all durable ones are found, whatever the writer
does meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log import reading
from flumeng.journal.log.errors import BelowFloorError
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.segment_files import SegmentFiles
from tests.testkit.journal import numbered_events

J = "web.n1.0.0a1b2c3d"


def read(files: SegmentFiles, folder: Path, start: int, end: int) -> list[int]:
    frames = (frame for window in files.windows(folder / J, start, end) for frame in window)
    batches = reading.rows(frames, J, start, end, replayed=False)
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


def append(journal: Journal, batches: int, size: int = 2000) -> None:
    for _ in range(batches):
        events = numbered_events(journal.next_seq, 10)
        bodies = pa.array([os.urandom(size) for _ in range(10)], pa.binary())
        journal.append(events.set_column(0, EVENT_SCHEMA.field("body"), bodies))
    journal.sync()


def test_reader_follows_a_journal_that_grows_over_segments(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, J, segment_bytes=1 << 20)
    files = SegmentFiles()
    for _ in range(8):
        append(journal, 50)
        end = journal.safe
        assert read(files, tmp_path, 0, end) == list(range(end))
        assert read(files, tmp_path, end - 25, end - 5) == list(range(end - 25, end - 5))
    assert len(list((tmp_path / J).glob("*.segment"))) > 2
    journal.close()


def test_events_that_are_not_durable_are_not_indexed(tmp_path: Path) -> None:
    """A crash may cut them off, and others are written in their place."""
    files = SegmentFiles()
    contents = []
    for name, size in (("first", 9_000), ("second", 5_000)):
        (tmp_path / name).mkdir()
        journal = Journal.create(tmp_path / name, J)
        append(journal, 40)
        journal.append(numbered_events(400, 10, 8))
        journal.sync()
        ((path, length),) = ((p, p.stat().st_size) for p in (tmp_path / name / J).glob("*.segment"))
        append(journal, 40, size)
        journal.close()
        contents.append((path, path.read_bytes()[:length], path.read_bytes()[length:]))
    (path, kept, _), (_, _, others) = contents
    assert read(files, tmp_path / "first", 0, 410) == list(range(410))
    path.write_bytes(kept + others)
    assert read(files, tmp_path / "first", 790, 810) == list(range(790, 810))


def test_trimmed_events_are_below_the_floor(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, J, limits=Limits(64 << 20), segment_bytes=1 << 20)
    files = SegmentFiles()
    append(journal, 400)
    assert read(files, tmp_path, 0, 10) == list(range(10))
    journal.trim(2000)
    assert journal.floor > 0
    with pytest.raises(BelowFloorError):
        read(files, tmp_path, 0, 10)
    floor = journal.floor
    assert read(files, tmp_path, floor, 4000) == list(range(floor, 4000))
    journal.close()
