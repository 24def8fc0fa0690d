"""A journal in memory: bounded, read as any other, with a record of the events lost with its
process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.log.contract import Log
from flumeng.journal.log.errors import AboveSafeError, BelowFloorError, DiskFullError
from flumeng.journal.log.frame import Payload
from flumeng.journal.log.group_commit import GroupCommit
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.log.reading import rows
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from tests.testkit.journal import FaultyDisk, numbered_events

ID = "web.n1.0.0a1b2c3d"


def fill(journal: Log, frames: int, count: int = 10) -> None:
    for _ in range(frames):
        first = journal.append(numbered_events(journal.next_seq, count), {"at": journal.next_seq})
        assert journal.next_seq == first + count
    journal.sync()


def seqs(journal: Log, start: int, end: int) -> list[int]:
    """The seqs that the bodies contain, compared with the seq column."""
    frames = [frame for window in journal.read_frames(start, end) for frame in window]
    found = pa.Table.from_batches(rows(frames, journal.id, start, end, replayed=False), READ_SCHEMA)
    numbers = [int(body.as_py().rstrip(b".")) for body in found["body"]]
    assert numbers == found["seq"].to_pylist()
    return numbers


def kill(journal: MemoryJournal, disk: FaultyDisk) -> None:
    """Lose its memory and its lock; written files stay."""
    disk.dead = True
    journal._let_go()
    disk.dead = False


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def journal(tmp_path: Path, disk: FaultyDisk) -> MemoryJournal:
    return MemoryJournal.create(tmp_path, ID, disk=disk)


def test_memory_journal_is_read_and_trimmed_as_any_journal(journal: MemoryJournal) -> None:
    fill(journal, 30)
    journal.append(numbered_events(300, 5))
    for start, end in [(0, 300), (5, 6), (19, 21), (299, 300), (50, 50)]:
        assert seqs(journal, start, end) == list(range(start, end))
    with pytest.raises(AboveSafeError):
        list(journal.read_frames(0, 301))
    journal.trim(105)
    assert (journal.floor, journal.acked) == (105, 105)
    assert seqs(journal, 105, 300) == list(range(105, 300))
    with pytest.raises(BelowFloorError):
        list(journal.read_frames(99, 300))
    with pytest.raises(CorruptError):
        journal.trim(301)
    journal.check()
    journal.trim(300)
    journal.check()
    journal.close()


def test_memory_of_the_journal_is_bounded_and_released(tmp_path: Path) -> None:
    journal = MemoryJournal.create(tmp_path, ID, limits=Limits(max_bytes=20_000))
    with pytest.raises(DiskFullError, match="events from seq 0 on are not acked"):
        fill(journal, 1000)
    assert 10_000 < journal.bytes <= 20_000
    journal.trim(journal.sync())
    assert journal.bytes == 0
    fill(journal, 1)
    journal.close()


def test_source_state_alone_never_fills_the_journal(tmp_path: Path) -> None:
    """No ack ever passes a frame that has no events."""
    journal = MemoryJournal.create(tmp_path, ID, limits=Limits(max_bytes=20_000))
    fill(journal, 1)
    journal.trim(journal.sync())
    for number in range(1000):
        journal.append(numbered_events(0, 0), {"app.log": number})
    assert journal.state["app.log"] == 999
    journal.close()


def test_no_event_of_a_memory_journal_is_ever_on_disk(
    tmp_path: Path, journal: MemoryJournal
) -> None:
    journal.append(numbered_events(0, 10, 2000))
    journal.sync()
    assert sum(path.stat().st_size for path in (tmp_path / ID).iterdir()) < 2000
    journal.close()


def test_killed_memory_journal_reports_its_losses_and_lets_acks_pass(
    tmp_path: Path, journal: MemoryJournal, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    fill(journal, 10)
    journal.trim(42)
    kill(journal, disk)
    again = Journal.open(tmp_path / ID, disk=disk)
    assert (again.floor, again.safe, again.closed, again.lost) == (42, 100, True, 58)
    assert "up to 58 events, from seq 42 to 100, are lost" in caplog.text
    assert seqs_of_loss(again) == []
    with pytest.raises(UserError, match="closed"):
        again.append(numbered_events(100, 1))
    again.trim(100)
    again.check()
    again.close()
    Journal.open(tmp_path / ID, disk=disk).close()


def seqs_of_loss(journal: Journal) -> list[int]:
    return [s for b in journal.read(journal.floor, journal.safe) for s in b["seq"].to_pylist()]


def test_repeatable_sources_continue_from_the_acked_events(
    tmp_path: Path, journal: MemoryJournal, disk: FaultyDisk
) -> None:
    fill(journal, 10)
    journal.trim(42)
    assert journal.state == {"at": 90}
    kill(journal, disk)
    again = Journal.open(tmp_path / ID, disk=disk)
    assert again.state == {"at": 30}, "the frame that begins at 40 was not acked as a whole"
    again.close()


def test_recovery_of_a_killed_memory_journal_is_repeatable(
    tmp_path: Path, journal: MemoryJournal, disk: FaultyDisk
) -> None:
    fill(journal, 10)
    kill(journal, disk)
    for step in range(100):
        disk.lives_for = step
        try:
            Journal.open(tmp_path / ID, disk=disk).close()
        except BaseException:
            disk.heal()
        else:
            break
    disk.heal()
    assert step > 3
    again = Journal.open(tmp_path / ID, disk=disk)
    assert (again.floor, again.safe, again.closed, again.lost) == (0, 100, True, 100)
    again.close()


def test_memory_journal_stopped_in_good_order_loses_nothing(
    tmp_path: Path, journal: MemoryJournal, disk: FaultyDisk
) -> None:
    fill(journal, 10)
    journal.trim(42)
    journal.close()
    again = Journal.open(tmp_path / ID, disk=disk)
    assert (again.safe, again.closed, again.lost) == (100, True, 0)
    assert again.floor <= 42
    assert seqs(again, 42, 100) == list(range(42, 100))
    assert again.state == {"at": 90}
    again.check()
    again.close()


def test_loss_after_a_crash_of_the_machine_is_a_lower_bound(
    tmp_path: Path, journal: MemoryJournal, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    fill(journal, 10)
    disk.dead = True
    journal._let_go()
    disk.power_cut(tmp_path / ID, lambda _, durable, __: durable, names_survive=True)
    disk.dead = False
    again = Journal.open(tmp_path / ID, disk=disk)
    assert again.closed
    assert "the machine went down, at least 0 events" in caplog.text
    again.close()


def test_removed_memory_journal_leaves_nothing(tmp_path: Path, journal: MemoryJournal) -> None:
    fill(journal, 1)
    journal.close_for_appends()
    journal.remove()
    assert not list(tmp_path.iterdir())


def test_full_disk_delays_trims_and_loses_nothing(tmp_path: Path, journal: MemoryJournal) -> None:
    fill(journal, 10)
    full = tmp_path / ID / "state.tmp"
    full.symlink_to("/dev/full")
    with pytest.raises(DiskFullError):
        journal.trim(40)
    journal.check()
    fill(journal, 1)
    assert seqs(journal, 0, 110) == list(range(110))
    full.unlink()
    journal.trim(40)
    assert journal.floor == 40
    journal.check()


@pytest.mark.slow
def test_trim_delayed_by_a_full_disk_is_done_when_there_is_room(tmp_path: Path) -> None:
    """All is acked already, so that no other ack will come."""
    journal = MemoryJournal.create(tmp_path, ID, limits=Limits(max_bytes=100))
    commits: GroupCommit[pa.RecordBatch] = GroupCommit(
        journal,
        lambda batches: [Payload.encode(batch, {"at": batch.num_rows}) for batch in batches],
    )
    commits.submit(numbered_events(0, 10))
    commits.drain(10)
    full = tmp_path / ID / "state.tmp"
    full.symlink_to("/dev/full")
    commits.submit(numbered_events(10, 20))
    commits.trim(10)
    with pytest.raises(UnavailableError):
        commits.drain(0.5)
    full.unlink()
    commits.drain(10)
    commits.stop()
    assert (journal.floor, journal.safe) == (10, 30)


def test_server_serves_accounts_of_a_memory_journal(tmp_path: Path) -> None:
    """All that it says of itself can be sent."""
    journal = MemoryJournal.create(tmp_path, ID)
    fill(journal, 3)
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    try:
        client = JournalClient(server.address)
        account = client.accounts()[ID]
        client.close()
        assert (account.durability, account.safe, account.lags) == ("memory", 30, {})
    finally:
        server.stop()
        journal.close()
