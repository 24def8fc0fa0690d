"""Size and retention of a journal, and the losses of each durability.

The survival of killed processes by durability is in tests/live/test_journal_durability.py.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.journal.log import directory as directories
from flumeng.journal.log.errors import BelowFloorError, DiskFullError, JournalFailedError
from flumeng.journal.log.frame import Payload
from flumeng.journal.log.group_commit import GroupCommit
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.limits import Limits, Room, no_limit
from flumeng.journal.log.segment_writer import LazySync, Reached
from tests.testkit.clock import Clock
from tests.testkit.journal import FaultyDisk, numbered_events
from tests.testkit.waiting import wait_for

ID = "web.n1.0.0a1b2c3d"
SEGMENT = 4096
FRAME_ROWS = 10


def fill(journal: Journal, frames: int) -> None:
    for _ in range(frames):
        journal.append(numbered_events(journal.next_seq, FRAME_ROWS))
        journal.sync()


def segments(journal: Journal, tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / journal.id).glob("*.segment"))


def size(journal: Journal, tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in segments(journal, tmp_path))


def test_journal_at_its_size_limit_behaves_as_on_a_full_disk(tmp_path: Path) -> None:
    """Nothing is written above the mark, nothing is lost, and it goes on once there are acks."""
    journal = Journal.create(tmp_path, ID, limits=Limits(max_bytes=8 * SEGMENT))
    with pytest.raises(DiskFullError, match="events from seq 0 on are not acked"):
        fill(journal, 1000)
    held = journal.next_seq
    assert journal.bytes == size(journal, tmp_path) <= 8 * SEGMENT
    assert len(segments(journal, tmp_path)) >= 6, "space would come back in too large pieces"
    with pytest.raises(DiskFullError):
        fill(journal, 1)
    assert journal.sync() == held
    journal.trim(held // 2)
    fill(journal, 1)
    assert journal.next_seq == held + FRAME_ROWS
    read = sum(batch.num_rows for batch in journal.read(held // 2, journal.safe))
    assert read == journal.safe - held // 2
    journal.check()
    journal.close()


def test_refused_events_are_written_as_they_are_when_there_is_room(tmp_path: Path) -> None:
    """The append is repeated, also after one of another batch."""
    journal = Journal.create(tmp_path, ID, limits=Limits(max_bytes=8 * SEGMENT))
    with pytest.raises(DiskFullError):
        fill(journal, 1000)
    journal.sync()
    first, second = (numbered_events(n, FRAME_ROWS) for n in (journal.next_seq, 7))
    for batch in (first, first, second, first):
        with pytest.raises(DiskFullError):
            journal.append(batch)
    start = journal.next_seq
    journal.trim(start // 2)
    journal.append(first)
    journal.append(second)
    end = journal.sync()
    (read,) = pa.Table.from_batches(journal.read(start, end)).select(["body"]).columns
    assert read.to_pylist() == [*first["body"].to_pylist(), *second["body"].to_pylist()]
    journal.close()


def test_frame_larger_than_the_size_limit_is_taken_by_an_empty_journal(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, ID, limits=Limits(max_bytes=100))
    fill(journal, 1)
    with pytest.raises(DiskFullError):
        fill(journal, 1)
    journal.trim(FRAME_ROWS)
    fill(journal, 1)
    journal.close()


def test_size_limit_holds_when_a_journal_is_opened_again(tmp_path: Path) -> None:
    """The size is counted again from the files, also when the process was killed in between."""
    disk = FaultyDisk()
    limits = Limits(max_bytes=8 * SEGMENT)
    journal = Journal.create(tmp_path, ID, limits=limits, disk=disk)
    with pytest.raises(DiskFullError):
        fill(journal, 1000)
    disk.dead = True
    journal.close()
    disk.dead = False
    again = Journal.open(tmp_path / ID, limits=limits, disk=disk)
    assert again.bytes == size(again, tmp_path)
    with pytest.raises(DiskFullError):
        fill(again, 1)
    again.close()


def test_new_size_limit_holds_at_once(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, ID, limits=Limits(max_bytes=2 * SEGMENT))
    with pytest.raises(DiskFullError):
        fill(journal, 1000)
    journal.limits = Limits(max_bytes=4 * SEGMENT)
    fill(journal, 1)
    journal.close()


def test_acked_events_are_retained_up_to_their_size(tmp_path: Path) -> None:
    limits = Limits(retain_bytes=3 * SEGMENT + 1000)
    journal = Journal.create(tmp_path, ID, limits=limits, segment_bytes=SEGMENT)
    fill(journal, 60)
    journal.trim(journal.safe)
    acked = size(journal, tmp_path) - segments(journal, tmp_path)[-1].stat().st_size
    assert 2 * SEGMENT < acked <= limits.retain_bytes
    seqs = [seq for b in journal.read(journal.floor, journal.safe) for seq in b["seq"].to_pylist()]
    assert seqs == list(range(journal.floor, journal.safe))
    journal.close()


def test_acked_events_are_retained_for_their_time(tmp_path: Path) -> None:
    """By the time of their last event, also when a process before this one wrote them."""
    limits = Limits(retain_seconds=100)
    journal = Journal.create(tmp_path, ID, segment_bytes=SEGMENT, limits=limits)
    fill(journal, 60)
    journal.close()
    old, young = segments(journal, tmp_path)[:2]
    os.utime(old, (time.time() - 101,) * 2)
    journal = Journal.open(tmp_path / ID, segment_bytes=SEGMENT, limits=limits)
    journal.maintain()
    assert old.exists(), "it was not acked"
    journal.trim(journal.safe)
    assert not old.exists()
    assert young.exists()
    os.utime(young, (time.time() - 101,) * 2)
    journal.maintain()
    assert not young.exists()
    journal.close()


def test_retention_drops_no_unacked_events(tmp_path: Path) -> None:
    """Neither time nor size drops an event that a reader still has to see."""
    limits = Limits(retain_seconds=0.001, retain_bytes=1)
    journal = Journal.create(tmp_path, ID, segment_bytes=SEGMENT, limits=limits)
    fill(journal, 60)
    for path in segments(journal, tmp_path):
        os.utime(path, (1, 1))
    journal.trim(95)
    journal.maintain()
    assert journal.floor <= 95
    assert [s for b in journal.read(95, 600) for s in b["seq"].to_pylist()] == list(range(95, 600))
    with pytest.raises(BelowFloorError):
        list(journal.read(0, 600))
    journal.close()


@pytest.mark.slow
def test_events_whose_retention_was_removed_go_without_another_ack(tmp_path: Path) -> None:
    limits = Limits(retain_seconds=3600)
    journal = Journal.create(tmp_path, ID, segment_bytes=SEGMENT, limits=limits)
    fill(journal, 60)
    commits: GroupCommit[pa.RecordBatch] = GroupCommit(journal, lambda _: [])
    commits.trim(journal.safe)
    wait_for(lambda: journal.acked == journal.safe)
    assert journal.floor == 0
    journal.limits = Limits()
    wait_for(lambda: journal.floor > 0)
    commits.stop()
    journal.close()


@pytest.mark.slow
def test_retained_events_go_before_a_sender_waits(tmp_path: Path) -> None:
    limits = Limits(max_bytes=8 * SEGMENT, retain_seconds=3600)
    journal = Journal.create(tmp_path, ID, limits=limits)
    for _ in range(400):
        fill(journal, 1)
        journal.trim(journal.safe)
        assert journal.bytes <= limits.max_bytes
    assert journal.bytes > limits.max_bytes // 2, "nothing was retained"
    journal.close()


def test_a_journal_of_one_acked_segment_gives_it_back_on_a_full_disk(tmp_path: Path) -> None:
    """A new segment must take its place, for which a full disk has no block but those set aside."""
    disk = FaultyDisk()
    journal = Journal.create(tmp_path, ID, disk=disk)
    while journal.bytes < 2 << 20:
        journal.append(numbered_events(journal.next_seq, 1000, 2000))
    journal.sync()
    spare = directories.spare(tmp_path / ID)
    assert spare.stat().st_blocks * 512 >= 4096, "it holds no blocks"
    full = [segments(journal, tmp_path)[0]]
    disk.fail_write(errno.ENOSPC, room=512)  # the checkpoint lies in its old place
    journal.trim(journal.safe)
    assert not disk.fails
    assert segments(journal, tmp_path) != full
    assert len(segments(journal, tmp_path)) == 1
    assert spare.exists(), "there was room again for the next time"
    fill(journal, 1)
    journal.close()
    Journal.open(tmp_path / ID).close()


@pytest.fixture
def spill(tmp_path: Path) -> tuple[Journal, FaultyDisk]:
    disk = FaultyDisk()
    return Journal.create(tmp_path, ID, durability="spill", disk=disk), disk


def test_spill_is_readable_before_it_is_synced(spill: tuple[Journal, FaultyDisk]) -> None:
    journal, disk = spill
    disk.failing_sync = errno.EIO
    fill(journal, 3)
    assert disk.fails, "it was synced"
    assert journal.safe == 3 * FRAME_ROWS
    assert sum(batch.num_rows for batch in journal.read(0, journal.safe)) == 3 * FRAME_ROWS
    disk.heal()
    journal.close()


def test_spill_survives_a_kill_and_goes_on(
    tmp_path: Path, spill: tuple[Journal, FaultyDisk]
) -> None:
    journal, disk = spill
    fill(journal, 3)
    disk.dead = True
    journal.close()
    disk.dead = False
    again = Journal.open(tmp_path / ID, disk=disk)
    assert (again.safe, again.closed, again.durability) == (3 * FRAME_ROWS, False, "spill")
    fill(again, 1)
    again.close()


def test_spill_takes_no_seq_twice_after_a_power_cut(
    tmp_path: Path, spill: tuple[Journal, FaultyDisk], caplog: pytest.LogCaptureFixture
) -> None:
    """I4: seqs of events that are gone were perhaps seen, so a journal that may have lost some
    ends there."""
    journal, disk = spill
    fill(journal, 3)
    disk.dead = True
    journal.close()
    disk.power_cut(tmp_path / ID, lambda _, durable, __: durable, names_survive=False)
    disk.dead = False
    again = Journal.open(tmp_path / ID, disk=disk)
    assert (again.safe, again.closed) == (0, True)
    assert "may be lost" in caplog.text
    again.close()


def test_spill_that_was_closed_in_good_order_goes_on_after_a_power_cut(
    tmp_path: Path, spill: tuple[Journal, FaultyDisk]
) -> None:
    journal, disk = spill
    fill(journal, 3)
    journal.close()
    disk.power_cut(tmp_path / ID, lambda _, durable, __: durable, names_survive=True)
    again = Journal.open(tmp_path / ID, disk=disk)
    assert (again.safe, again.closed) == (3 * FRAME_ROWS, False)
    again.close()


@pytest.mark.slow
def test_spill_comes_to_the_disk_within_a_second_or_so_without_being_asked(
    tmp_path: Path, spill: tuple[Journal, FaultyDisk]
) -> None:
    journal, disk = spill
    commits: GroupCommit[pa.RecordBatch] = GroupCommit(
        journal, lambda batches: map(Payload.encode, batches)
    )
    commits.submit(numbered_events(0, 1))
    commits.drain(10)
    wait_for(lambda: journal._checkpoint.safe == 1)
    disk.dead = True
    commits.stop()
    journal.close()
    disk.power_cut(tmp_path / ID, lambda _, durable, __: durable, names_survive=False)
    disk.dead = False
    again = Journal.open(tmp_path / ID, disk=disk)
    assert again.safe == 1
    again.close()


@pytest.mark.slow
def test_a_lazy_sync_that_failed_is_final(spill: tuple[Journal, FaultyDisk]) -> None:
    journal, disk = spill
    fill(journal, 1)
    disk.failing_sync = errno.EIO

    def fails() -> bool:
        try:
            fill(journal, 1)
        except JournalFailedError:
            return True
        return False

    wait_for(fails)
    with pytest.raises(JournalFailedError):
        fill(journal, 1)
    journal.close()


def test_lazy_syncs_are_a_second_apart_and_one_at_a_time(tmp_path: Path) -> None:
    clock = Clock(0.0)
    lazy = LazySync(FaultyDisk(), clock)
    with (tmp_path / "file").open("wb") as file:
        reached = [Reached(0, n, n) for n in range(4)]
        lazy.begin(file.fileno(), reached[0])
        assert lazy.settle() is None, "too early"
        clock.now = 1.0
        lazy.begin(file.fileno(), reached[1])
        clock.now = 5.0
        lazy.begin(file.fileno(), reached[2])
        assert lazy.settle() == reached[1]
        assert lazy.settle() is None
    lazy.close()


@pytest.mark.slow
def test_group_with_room_for_a_part_only_continues_with_the_acks(tmp_path: Path) -> None:
    """The part lies in the only segment: unless it can be read and acked, no room ever comes."""
    journal = Journal.create(tmp_path, ID)
    journal.room = lambda: Room((2 << 20) - journal.bytes, 1)
    batches = [numbered_events(first, 1000, 2000) for first in range(0, 80_000, 1000)]
    commits: GroupCommit[pa.Table] = GroupCommit(
        journal, lambda group: [Payload.encode(b) for table in group for b in table.to_batches()]
    )
    commits.submit(pa.Table.from_batches(batches))

    def done() -> bool:
        commits.trim(journal.safe)
        return not commits.pending_bytes

    wait_for(done)
    commits.stop()
    assert journal.next_seq == 80_000
    journal.close()


def test_retained_acked_segment_is_deleted_before_a_sender_waits(tmp_path: Path) -> None:
    """Also the one that is written to, when it is all that there is."""
    journal = Journal.create(tmp_path, ID, limits=Limits(retain_seconds=3600))
    journal.room = lambda: Room((2 << 20) - journal.bytes, 1)
    for _ in range(60):
        journal.append(numbered_events(journal.next_seq, 1000, 2000))
        journal.sync()
        journal.trim(journal.safe)
    assert journal.floor > 0
    journal.check()
    journal.close()


def test_retained_events_go_before_senders_of_another_journal_wait(tmp_path: Path) -> None:
    disk = FaultyDisk()
    limits = Limits(retain_seconds=3600)
    keeps = Journal.create(tmp_path, ID, segment_bytes=SEGMENT, limits=limits, disk=disk)
    waits = Journal.create(tmp_path, f"{ID}b")
    fill(keeps, 60)
    keeps.trim(keeps.safe)
    keeps.maintain()
    assert keeps.floor == 0
    frame = numbered_events(0, 1000, 2000)
    most = keeps.bytes + waits.bytes + 100
    keeps.room = waits.room = lambda: Room(most - keeps.bytes - waits.bytes, 1)
    with pytest.raises(DiskFullError):
        waits.append(frame)
    keeps.maintain()
    waits.append(frame)
    waits.close()
    keeps.room = no_limit
    fill(keeps, 60)
    keeps.trim(keeps.safe)
    floor = keeps.floor
    disk.free = 64 << 20
    keeps.maintain()
    assert keeps.floor > floor
    keeps.close()
