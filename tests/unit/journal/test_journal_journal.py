"""Guarantees of an open journal: order, durability before visibility, retention.

The guarantees after a crash are in test_journal_recovery.py and
tests/props/test_journal_machine.py.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log.errors import (
    AboveSafeError,
    BelowFloorError,
    DiskFullError,
    HeldError,
    JournalFailedError,
)
from flumeng.journal.log.frame import MAX_ROWS
from flumeng.journal.log.journal import ROLL_WORTH_BYTES, Journal
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.segment import SEGMENT_HEADER_BYTES
from flumeng.platform.errors import CorruptError, UserError
from tests.testkit.journal import FaultyDisk, numbered_events

ID = "web.n1.0.0a1b2c3d"
TINY_SEGMENT = 4096


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def journal(tmp_path: Path, disk: FaultyDisk) -> Iterator[Journal]:
    journal = Journal.create(tmp_path, ID, segment_bytes=TINY_SEGMENT, disk=disk)
    yield journal
    journal.check()
    journal.close()


def fill(journal: Journal, count: int, frame_rows: int = 10) -> None:
    """Append and sync ``count`` numbered events."""
    for first in range(journal.next_seq, journal.next_seq + count, frame_rows):
        journal.append(numbered_events(first, frame_rows))
    journal.sync()


def seqs(journal: Journal, start: int, end: int) -> list[int]:
    """The seqs that the bodies contain."""
    bodies = [body for batch in journal.read(start, end) for body in batch.column("body")]
    return [int(body.as_py().rstrip(b".")) for body in bodies]


def segments(journal: Journal, tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / journal.id).glob("*.segment"))


def test_i3_seqs_are_dense_and_given_in_order(journal: Journal) -> None:
    firsts = [journal.append(numbered_events(seq, 3)) for seq in (0, 3, 6)]
    assert (firsts, journal.next_seq) == ([0, 3, 6], 9)


def test_nothing_is_readable_before_it_is_synced(journal: Journal) -> None:
    """I24 of flumeng.journal.replication."""
    journal.append(numbered_events(0, 3))
    assert journal.safe == 0
    with pytest.raises(AboveSafeError):
        next(journal.read_frames(0, 1))
    assert journal.sync() == journal.safe == 3
    assert seqs(journal, 0, 3) == [0, 1, 2]


def test_read_returns_exactly_the_requested_range_with_positions(journal: Journal) -> None:
    fill(journal, 200)
    for start, end in [(0, 200), (5, 6), (9, 21), (199, 200), (50, 50), (64, 131)]:
        assert seqs(journal, start, end) == list(range(start, end))
    table = pa.Table.from_batches(journal.read(7, 150, replayed=True), READ_SCHEMA)
    assert table["seq"].to_pylist() == list(range(7, 150))
    assert set(table["journal"].to_pylist()) == {ID}
    assert set(table["replayed"].to_pylist()) == {True}


def test_frame_larger_than_the_read_window_is_read(journal: Journal) -> None:
    noise = [os.urandom(4000) for _ in range(1000)]
    columns = [pa.array(noise, pa.binary()), *numbered_events(0, 1000).columns[1:]]
    journal.append(pa.RecordBatch.from_arrays(columns, schema=numbered_events(0, 1).schema))
    journal.append(numbered_events(1000, 1))
    journal.sync()
    bodies = [body.as_py() for batch in journal.read(0, 1000) for body in batch.column("body")]
    assert bodies == noise
    assert seqs(journal, 1000, 1001) == [1000]


def test_a_sync_that_failed_is_final(tmp_path: Path, journal: Journal, disk: FaultyDisk) -> None:
    """The kernel may have dropped the pages; a second try that succeeds proves nothing."""
    fill(journal, 10)
    journal.append(numbered_events(10, 10))
    before = (tmp_path / ID / checkpoints.NAME).read_bytes()
    disk.failing_sync = errno.EIO
    with pytest.raises(JournalFailedError):
        journal.sync()
    assert (tmp_path / ID / checkpoints.NAME).read_bytes() == before, "ahead of the data"
    for write in (
        journal.sync,
        lambda: journal.append(numbered_events(20, 1)),
        lambda: journal.trim(10),
        journal.close_for_appends,
    ):
        with pytest.raises(JournalFailedError):
            write()
    assert journal.safe == 10
    assert seqs(journal, 0, 10) == list(range(10))


def test_a_failed_write_is_final(journal: Journal, disk: FaultyDisk) -> None:
    disk.fail_write(errno.EIO, room=100)
    with pytest.raises(JournalFailedError):
        journal.append(numbered_events(0, 10))
    with pytest.raises(JournalFailedError):
        journal.append(numbered_events(0, 10))


def test_unsynced_events_of_a_failed_sync_are_rewritten_on_reopening(
    tmp_path: Path, journal: Journal, disk: FaultyDisk
) -> None:
    """The page cache may show bytes as clean that never reached the medium."""
    fill(journal, 10)
    journal.append(numbered_events(10, 10))
    disk.failing_sync = errno.EIO
    with pytest.raises(JournalFailedError):
        journal.sync()
    journal.close()

    watching = FaultyDisk()
    with_tail = Journal.open(tmp_path / ID, disk=watching)
    assert with_tail.safe == 20
    assert watching.writes[0] > 0, "the unsynced frame was not written again before the sync"
    with_tail.close()


def test_full_disk_truncates_the_frame_and_is_no_failure(
    journal: Journal, disk: FaultyDisk
) -> None:
    fill(journal, 10)
    disk.fail_write(errno.ENOSPC, room=100)
    with pytest.raises(DiskFullError):
        journal.append(numbered_events(10, 10))
    journal.check()
    fill(journal, 10)
    assert seqs(journal, 0, 20) == list(range(20))


def test_lack_of_memory_for_a_write_is_no_failure(journal: Journal, disk: FaultyDisk) -> None:
    disk.fail_write(errno.ENOMEM, room=100)
    with pytest.raises(HeldError, match="Cannot allocate memory"):
        journal.append(numbered_events(0, 10))
    fill(journal, 10)
    assert seqs(journal, 0, 10) == list(range(10))


def test_appends_stop_before_the_disk_is_full(journal: Journal, disk: FaultyDisk) -> None:
    disk.free = 64 << 20
    with pytest.raises(DiskFullError, match="must stay free"):
        journal.append(numbered_events(0, 1))
    disk.free = None
    fill(journal, 10)
    assert seqs(journal, 0, 10) == list(range(10))


def test_a_full_disk_does_not_stop_trimming(
    tmp_path: Path, journal: Journal, disk: FaultyDisk
) -> None:
    fill(journal, 200)
    before = len(segments(journal, tmp_path))
    disk.free = 0
    journal.trim(200)
    assert len(segments(journal, tmp_path)) < before


def test_a_journal_for_which_there_is_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail_write(errno.ENOSPC)
    with pytest.raises(DiskFullError):
        Journal.create(tmp_path / "new", ID, disk=disk)
    assert not list((tmp_path / "new").iterdir())


def test_missing_room_for_the_checkpoint_is_no_failure(journal: Journal, disk: FaultyDisk) -> None:
    """A file system that copies on write needs room even to overwrite."""
    journal.append(numbered_events(0, 10))
    disk.fail_write(errno.ENOSPC)
    with pytest.raises(DiskFullError):
        journal.sync()
    assert journal.safe == 0
    assert journal.sync() == 10


def test_missing_room_for_a_new_segment_is_no_failure(
    tmp_path: Path, journal: Journal, disk: FaultyDisk
) -> None:
    while (tmp_path / ID / f"{0:020d}.segment").stat().st_size < TINY_SEGMENT:
        fill(journal, 10)
    end = journal.safe
    disk.fail_write(
        errno.ENOSPC, room=checkpoints.BLOCK_BYTES
    )  # the old segment's checkpoint, no new header
    with pytest.raises(DiskFullError):
        journal.append(numbered_events(end, 1))
    assert len(segments(journal, tmp_path)) == 1
    assert list((tmp_path / ID).glob("*.unfinished")) == []
    fill(journal, 10)
    assert len(segments(journal, tmp_path)) == 2
    assert seqs(journal, 0, end + 10) == list(range(end + 10))


def test_roll_without_room_for_its_checkpoint_and_a_trim_keep_the_journal(
    tmp_path: Path, journal: Journal, disk: FaultyDisk
) -> None:
    """The checkpoint must not go on naming a segment that the trim deletes."""
    while (tmp_path / ID / f"{0:020d}.segment").stat().st_size < TINY_SEGMENT:
        fill(journal, 10)
    end = journal.safe
    disk.fail_write(errno.ENOSPC, room=checkpoints.BLOCK_BYTES + SEGMENT_HEADER_BYTES)
    with pytest.raises(DiskFullError):
        journal.append(numbered_events(end, 1))
    assert len(segments(journal, tmp_path)) == 2
    journal.trim(end)
    assert len(segments(journal, tmp_path)) == 1
    disk.dead = True
    journal.close()
    again = Journal.open(tmp_path / ID)
    assert (again.floor, again.safe) == (end, end)
    again.close()


def test_i1_source_state_is_synced_after_a_roll_without_checkpoint_room(
    tmp_path: Path, journal: Journal, disk: FaultyDisk
) -> None:
    while (tmp_path / ID / f"{0:020d}.segment").stat().st_size < TINY_SEGMENT:
        fill(journal, 10)
    disk.fail_write(errno.ENOSPC, room=checkpoints.BLOCK_BYTES + SEGMENT_HEADER_BYTES)
    with pytest.raises(DiskFullError):
        journal.append(numbered_events(0, 0), {"read": 7})
    journal.append(numbered_events(0, 0), {"read": 7})
    journal.sync()
    disk.dead = True
    journal.close()
    disk.power_cut(tmp_path / ID, lambda _, durable, __: durable, names_survive=False)
    again = Journal.open(tmp_path / ID)
    assert again.state["read"] == 7
    again.close()


def test_an_oversized_batch_is_refused_and_the_journal_goes_on(journal: Journal) -> None:
    with pytest.raises(UserError):
        journal.append(numbered_events(0, MAX_ROWS + 1))
    fill(journal, 10)
    assert seqs(journal, 0, 10) == list(range(10))


def test_trim_drops_whole_segments_below_the_ack_and_no_more(
    tmp_path: Path, journal: Journal
) -> None:
    fill(journal, 300)
    bases = [int(name.split(".")[0]) for name in segments(journal, tmp_path)]
    ack = bases[2] + 1
    journal.trim(ack)
    assert journal.floor == bases[2] <= ack
    assert seqs(journal, journal.floor, 300) == list(range(journal.floor, 300))
    with pytest.raises(BelowFloorError):
        next(journal.read_frames(journal.floor - 1, 300))


def test_the_new_floor_is_on_disk_before_anything_is_unlinked(
    tmp_path: Path, journal: Journal, disk: FaultyDisk
) -> None:
    fill(journal, 300)
    before = segments(journal, tmp_path)
    disk.failing_sync = errno.EIO
    with pytest.raises(JournalFailedError):
        journal.trim(200)
    assert segments(journal, tmp_path) == before


def test_ack_above_the_end_is_an_error(tmp_path: Path, journal: Journal) -> None:
    fill(journal, 100)
    before = segments(journal, tmp_path)
    with pytest.raises(CorruptError, match="above its end"):
        journal.trim(101)
    assert segments(journal, tmp_path) == before


def test_ack_that_was_set_back_keeps_the_events_to_be_read_again(tmp_path: Path) -> None:
    """Else room would be made at the cost of events that an operator wants delivered once more."""
    keeps = Limits(max_bytes=1 << 20, retain_seconds=3600)
    journal = Journal.create(tmp_path, ID, limits=keeps)
    while journal.bytes < 1 << 19:
        journal.append(numbered_events(journal.next_seq, 100, body_bytes=200))
    end = journal.sync()
    journal.trim(end)
    journal.trim(100)
    assert (journal.floor, journal.acked) == (0, 100)
    with pytest.raises(DiskFullError):
        while True:
            journal.append(numbered_events(journal.next_seq, 100, body_bytes=200))
    assert seqs(journal, 100, end) == list(range(100, end))


def test_fully_acked_active_segment_is_removed_when_it_is_large(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, ID)
    fill(journal, 10)
    journal.trim(10)
    assert journal.floor == 0, "a few bytes are not worth a new file"
    journal.append(numbered_events(10, 3000, body_bytes=3000), {"cursor": 5})
    journal.append(numbered_events(3010, 1))
    journal.sync()
    assert sum(path.stat().st_size for path in (tmp_path / ID).iterdir()) < ROLL_WORTH_BYTES
    while (tmp_path / ID / f"{0:020d}.segment").stat().st_size < ROLL_WORTH_BYTES:
        fill(journal, 20_000, frame_rows=20_000)
    journal.close_for_appends()
    journal.trim(journal.safe)
    assert journal.floor == journal.safe
    assert len(segments(journal, tmp_path)) == 1
    journal.check()
    journal.close()
    again = Journal.open(tmp_path / ID)
    assert (again.safe, dict(again.state)) == (journal.safe, {"cursor": 5})
    assert again.closed, "the roll opened it again"
    again.close()


def test_source_state_is_merged_and_crosses_segments(tmp_path: Path, journal: Journal) -> None:
    journal.append(numbered_events(0, 1), {"a": 1, "b": {"offset": 2}})
    fill(journal, 300)
    journal.append(numbered_events(301, 0), {"a": None, "c": [3]})
    journal.sync()
    wanted = {"b": {"offset": 2}, "c": [3]}
    assert dict(journal.state) == wanted
    journal.trim(300)
    journal.close()
    again = Journal.open(tmp_path / ID)
    assert dict(again.state) == wanted
    again.close()


def test_source_state_without_events_never_begins_a_segment(
    tmp_path: Path, journal: Journal
) -> None:
    """Two segments would have the same base, and so the same name."""
    fill(journal, 20)
    journal.trim(20)
    for value in range(20):
        journal.append(numbered_events(20, 0), {"cursor": "x" * 500, "value": value})
    journal.sync()
    journal.trim(20)
    fill(journal, 10)
    assert seqs(journal, journal.floor, 30) == list(range(journal.floor, 30))
    journal.close()
    again = Journal.open(tmp_path / ID)
    assert again.state["value"] == 19
    assert seqs(again, again.floor, 30) == list(range(again.floor, 30))
    again.close()


def test_journal_closed_for_appends_stays_closed(tmp_path: Path, journal: Journal) -> None:
    journal.append(numbered_events(0, 3))
    assert journal.close_for_appends() == 3 == journal.safe
    assert journal.close_for_appends() == 3
    with pytest.raises(UserError, match="closed"):
        journal.append(numbered_events(3, 1))
    journal.close()
    again = Journal.open(tmp_path / ID)
    assert again.closed
    assert seqs(again, 0, 3) == [0, 1, 2]
    again.trim(3)
    again.close()


def test_i4_each_opening_has_a_new_term(tmp_path: Path, journal: Journal) -> None:
    journal.close()
    shutil.copytree(tmp_path / ID, tmp_path / "copy" / ID)
    again = Journal.open(tmp_path / ID)
    assert again.term > journal.term
    again.close()
    restored = Journal.open(tmp_path / "copy" / ID)
    assert restored.term > again.term, "the events of a restored copy can be told apart"
    restored.close()


def test_one_writer_per_directory(tmp_path: Path, journal: Journal) -> None:
    with pytest.raises(UserError, match="in use"):
        Journal.open(tmp_path / ID)
    fill(journal, 10)
    journal.close()
    Journal.open(tmp_path / ID).close()


def test_journal_id_is_never_used_twice_and_names_no_path(tmp_path: Path) -> None:
    Journal.create(tmp_path, ID).close()
    with pytest.raises(UserError, match="exists"):
        Journal.create(tmp_path, ID)
    for bad in ("", "..", "a/b", ".hidden", "a" * 201):
        with pytest.raises(UserError, match="id"):
            Journal.create(tmp_path, bad)


def test_interrupted_create_or_remove_leaves_nothing(tmp_path: Path, journal: Journal) -> None:
    (tmp_path / ".web.n2.0.00000000.incomplete").mkdir()
    assert Journal.find(tmp_path) == [tmp_path / ID]
    journal.remove()
    assert list(tmp_path.iterdir()) == []
    assert Journal.find(tmp_path / "nowhere") == []
    Journal.create(tmp_path, ID).close()
    assert oct((tmp_path / ID).stat().st_mode & 0o777) == "0o700"


def test_path_that_is_no_journal_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        Journal.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Not a directory"):
        Journal.open(tmp_path / "file")


@pytest.mark.slow
def test_readers_in_other_threads_never_see_a_gap(tmp_path: Path, disk: FaultyDisk) -> None:
    """Rolls, syncs and trims go on while a reader reads the present events."""
    journal = Journal.create(tmp_path, "busy", segment_bytes=TINY_SEGMENT, disk=disk)
    problems: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            floor, safe = journal.floor, journal.safe
            try:
                assert seqs(journal, floor, safe) == list(range(floor, safe))
            except BelowFloorError:
                continue
            except BaseException as problem:
                problems.append(problem)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        fill(journal, 50)
        journal.trim(max(0, journal.safe - 100 - turn))
    done.set()
    reader.join()
    journal.close()
    assert problems == []


@pytest.mark.slow
def test_source_state_larger_than_a_frame_may_carry_goes_over_to_new_segments(
    tmp_path: Path,
) -> None:
    """As that of 100,000 followed files. It comes in small parts, and each segment begins with all
    of it, which is a small part of the segment."""
    journal = Journal.create(tmp_path, ID, segment_bytes=1 << 20)
    state: dict[str, object] = {}
    for first in range(0, 40_000, 10_000):
        changes = {
            f"tail:1:{n}": [f"/var/log/{n}\n", "x" * 500] for n in range(first, first + 10_000)
        }
        journal.append(numbered_events(journal.next_seq, 10), changes)
        state |= changes
    journal.append(numbered_events(journal.next_seq, 10), {"tail:1:7": None})
    del state["tail:1:7"]
    journal.sync()
    segments = sorted((tmp_path / ID).glob("*.segment"))
    assert len(segments) >= 2
    assert segments[-1].stat().st_size > 16 << 20
    journal.close()
    again = Journal.open(tmp_path / ID, segment_bytes=1 << 20)
    assert dict(again.state) == state
    before = len(list((tmp_path / ID).glob("*.segment")))
    for _ in range(20):
        again.append(numbered_events(again.next_seq, 1000))
    assert len(list((tmp_path / ID).glob("*.segment"))) <= before + 1
    again.sync()
    assert seqs(again, 0, 10) == list(range(10))
    again.trim(again.safe)
    again.check()
    again.close()


def test_listeners_are_not_called_when_nothing_has_moved(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, ID)
    journal.append(numbered_events(0, 10))
    journal.sync()
    told: list[int] = []
    journal.listeners.add(lambda: told.append(journal.safe))
    for _ in range(3):
        journal.sync()
        journal.maintain()
        journal.trim(0)
    assert told == []
    journal.append(numbered_events(10, 10))
    journal.sync()
    assert told == [20]
    journal.close()
