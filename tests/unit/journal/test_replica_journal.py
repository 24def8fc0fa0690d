"""A replica on disk: taken frames, terms, cuts and restarts, over crashes.

Protects that a replica holds the same bytes as its primary, shows readers no events that a replica
in sync lacks, and that its reported terms are those on its disk.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.journal.log.errors import AboveSafeError, OutOfDescriptorsError
from flumeng.journal.log.frame import MAGIC
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replication.history import Log, Start
from flumeng.platform.errors import CorruptError
from tests.testkit.journal import FaultyDisk, numbered_events

NAME = "web.n1.0.0a1b2c3d"


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[ReplicaJournal]:
    made = ReplicaJournal.make(tmp_path / "n1", NAME, Replica.new("n1"), term=1)
    for start in (0, 10, 20):
        made.append(numbered_events(start, 10), {"cursor": start + 10})
        made.sync()
    made.check()
    yield made
    made.close()


@pytest.fixture
def replica(tmp_path: Path, primary: ReplicaJournal) -> ReplicaJournal:
    replica = Replica.new("n2", primary.replica.lineage)
    return ReplicaJournal.make(tmp_path / "n2", NAME, replica, term=1)


def frames(journal: ReplicaJournal, start: int, end: int) -> list[pa.Buffer]:
    journal.advance(end)
    return [frame for window in journal.read_frames(start, end) for frame in window]


def bodies(journal: ReplicaJournal, start: int, end: int) -> list[object]:
    return [row for batch in journal.read(start, end) for row in batch["seq"].to_pylist()]


def test_replica_stores_frames_unchanged_and_readers_wait_for_all_replicas(
    primary: ReplicaJournal, replica: ReplicaJournal
) -> None:
    for frame in frames(primary, 0, 30):
        replica.append_frame(frame)
    replica.sync()
    assert replica.held == primary.held == Log(0, 30, 30, (Start(1, 0),))
    assert (replica.safe, replica.state) == (0, {"cursor": 30})
    with pytest.raises(AboveSafeError):
        list(replica.read(0, 10))
    replica.advance(20)
    assert bodies(replica, 0, 20) == list(range(20))
    assert frames(replica, 0, 30) == frames(primary, 0, 30)
    replica.close()


def test_frame_that_does_not_continue_the_replica_is_refused(
    primary: ReplicaJournal, replica: ReplicaJournal
) -> None:
    first, second, _ = frames(primary, 0, 30)
    with pytest.raises(CorruptError, match="seq 10"):
        replica.append_frame(second)
    broken = bytearray(first)
    broken[-70] ^= 1
    with pytest.raises(CorruptError, match="checksum"):
        replica.append_frame(pa.py_buffer(broken))
    primary.fence(2)
    primary.append(numbered_events(30, 1))
    primary.sync()
    for frame in frames(primary, 0, 30):
        replica.append_frame(frame)
    with pytest.raises(CorruptError, match="term 2"):
        replica.append_frame(frames(primary, 30, 31)[0])
    replica.close()


def test_terms_are_restored_after_a_restart(tmp_path: Path, primary: ReplicaJournal) -> None:
    primary.fence(3)
    primary.append(numbered_events(30, 5))
    primary.fence(7)
    primary.append(numbered_events(35, 5))
    primary.append(numbered_events(40, 5))
    primary.sync()
    history = (Start(1, 0), Start(3, 30), Start(7, 35))
    assert primary.held.history == history
    primary.close()
    again = ReplicaJournal.load(tmp_path / "n1" / NAME)
    assert (again.held, again.term) == (Log(0, 45, 45, history), 7)
    again.close()


@pytest.mark.parametrize("end", [0, 10, 20, 30, 35, 40])
def test_cut_keeps_the_events_below_and_their_source_state(
    tmp_path: Path, primary: ReplicaJournal, end: int
) -> None:
    for term, start in ((2, 30), (3, 35)):
        primary.fence(term)
        primary.append(numbered_events(start, 5), {"cursor": start + 5})
    primary.sync()
    left = primary.cut(end)
    left.check()
    assert left.held.end == left.held.safe == end
    assert left.state == ({"cursor": end} if end else {})
    left.fence(9)
    left.append(numbered_events(end, 3))
    left.sync()
    left.advance(end + 3)
    assert bodies(left, 0, end + 3) == list(range(end + 3))
    left.close()
    again = ReplicaJournal.load(tmp_path / "n1" / NAME)
    assert again.held == left.held
    assert again.safe == end + 3, "a checkpoint that was kept"
    again.close()


def test_replica_restarts_where_the_primary_begins(replica: ReplicaJournal) -> None:
    anew = replica.restart(500, "b", {"cursor": 500})
    assert (anew.held, anew.state) == (Log(500, 500, 500, ()), {"cursor": 500})
    assert (anew.term, anew.replica.lineage, anew.replica.id) == (1, "b", replica.replica.id)
    assert anew.source_state_at_floor == {"cursor": 500}
    anew.append(numbered_events(500, 4))
    anew.sync()
    anew.advance(504)
    assert bodies(anew, 500, 504) == [500, 501, 502, 503]
    anew.close()


def test_replica_whose_disk_lost_confirmed_events_is_not_opened(
    tmp_path: Path, primary: ReplicaJournal
) -> None:
    primary.advance(30)
    primary.close()
    known = (tmp_path / "n1" / NAME / "replica").read_bytes()
    ReplicaJournal.load(tmp_path / "n1" / NAME).cut(10).close()
    (tmp_path / "n1" / NAME / "replica").write_bytes(known)
    with pytest.raises(CorruptError, match="all replicas had 30"):
        ReplicaJournal.load(tmp_path / "n1" / NAME)


def test_replica_that_cannot_be_opened_for_lack_of_descriptors_is_not_damaged(
    tmp_path: Path, replica: ReplicaJournal
) -> None:
    """A damaged one is renamed, and its events are sent again."""
    replica.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OutOfDescriptorsError, match="Too many open files"):
            ReplicaJournal.load(tmp_path / "n2" / NAME)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ReplicaJournal.load(tmp_path / "n2" / NAME).close()


def test_replica_whose_opening_failed_is_not_in_use(
    tmp_path: Path, primary: ReplicaJournal
) -> None:
    primary.fence(2)
    primary.append(numbered_events(30, 1))
    primary.close()
    directory = tmp_path / "n1" / NAME
    first = min(directory.glob("*.segment"))
    sound = first.read_bytes()
    header = sound.index(MAGIC)
    first.write_bytes(sound[:header] + b"?" + sound[header + 1 :])
    with pytest.raises(CorruptError, match="no frame begins here"):
        ReplicaJournal.load(directory)
    first.write_bytes(sound)
    ReplicaJournal.load(directory).close()


def test_checkpoint_that_a_full_disk_delays_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried every second, and the older one on the disk does no harm."""
    disk = FaultyDisk()
    made = ReplicaJournal.make(tmp_path, NAME, Replica.new("n1"), term=1, disk=disk)
    made.append(numbered_events(0, 10))
    made.sync()
    for checkpoint in (5, 10):
        made.advance(checkpoint)
        disk.fail_write(errno.ENOSPC)
        made.fence(1)
    made.close()
    text = f"journal {NAME}: its replica's checkpoint is written later: "
    assert [message for message in caplog.messages if message.startswith(text)] == caplog.messages
    assert len(caplog.messages) == 1
