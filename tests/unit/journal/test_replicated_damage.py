"""Replicas of a journal whose disks damage their events, or fail, while all runs.

Protects that damage is met by the node and not by readers alone, that a damaged replica counts for
no replica any more, and that after a failed sync only events that came to the disk since count.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flumeng.journal.log.errors import HeldError, JournalFailedError
from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.replicas.replica_lag import LATE_SECONDS, RESEND_SECONDS
from flumeng.journal.replicas.replicated_journal import ASK_AGAIN_SECONDS, ReplicatedJournal
from flumeng.journal.replication.membership import Membership
from flumeng.platform.backoff import FIRST_SECONDS, MOST_SECONDS
from flumeng.platform.errors import CorruptError, UnavailableError
from tests.unit.journal.replicas_world import (
    NAME,
    NODES,
    Site,
    SmallDisk,
    World,
    bodies,
    is_segment,
    promote,
    seqs,
    take,
)


class LossyDisk(SmallDisk):
    """Models the medium: after a failed sync the unsynced bytes count as clean and are never
    written, as on Linux."""

    failing: int | None = None
    """The errno of syncs of segments."""

    stuck = False
    """Whether syncs of checkpoints fail."""

    def __init__(self) -> None:
        self.failed = 0
        self._medium: dict[int, bytearray] = {}
        self._dirty: dict[int, list[tuple[int, bytes]]] = {}

    def write(self, fd: int, parts: Sequence[Any], offset: int) -> None:
        inode = os.fstat(fd).st_ino
        self._medium.setdefault(inode, bytearray(Path(f"/proc/self/fd/{fd}").read_bytes()))
        super().write(fd, parts, offset)
        data = b"".join(bytes(part) for part in parts)
        self._dirty.setdefault(inode, []).append((offset, data))

    def sync(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        dirty = self._dirty.pop(inode, [])
        if self.failing is not None and is_segment(fd):
            self.failed += 1
            raise OSError(self.failing, os.strerror(self.failing))
        if self.stuck and Path(f"/proc/self/fd/{fd}").readlink().name == "checkpoint":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        medium = self._medium.get(inode, bytearray())
        for offset, data in dirty:
            medium.extend(bytes(max(0, offset + len(data) - len(medium))))
            medium[offset : offset + len(data)] = data

    def forget_the_cache(self, directory: Path) -> None:
        for path in directory.glob("*.segment"):
            medium = self._medium[path.stat().st_ino]
            path.write_bytes(bytes(medium).ljust(path.stat().st_size, b"\0"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world in which n1 leads and all are in sync."""
    world = World(tmp_path)
    for site in world.sites.values():
        site.disk = LossyDisk()
        site.again()
    world.settle()
    assert world.in_sync == list(NODES)
    yield world
    for site in world.sites.values():
        site.journal.close()


def frames_of(journal: ReplicatedJournal) -> list[tuple[int, int]]:
    owner = identity(NAME)
    found = (f for window in journal.frames(0, journal.next_seq) for f in window)
    headers = [FrameHeader.unpack(frame, 0, owner) for frame in found]
    return [(header.first_seq, header.end) for header in headers]


def damage(world: World, name: str, back: int) -> None:
    """Flip a bit ``back`` bytes before the end of a node's journal."""
    *_, segment = sorted((world.path / name / NAME).glob("*.segment"))
    raw = bytearray(segment.read_bytes())
    raw[-back] ^= 1
    segment.write_bytes(raw)


def filled(world: World) -> ReplicatedJournal:
    """n1 with three frames of ten events that all have; the last frame is damaged there."""
    for _ in range(3):
        take(world["n1"])
    world.settle()
    world.look(2 * RESEND_SECONDS)
    damage(world, "n1", 10)
    return world["n1"]


# Damage.


def test_damage_met_by_a_reader_is_known_to_the_primary_and_readers_wait(world: World) -> None:
    primary = filled(world)
    assert bodies(primary, 0, 20) == seqs((0, 20))
    assert primary.damaged == ""
    found: list[int] = []
    with pytest.raises(UnavailableError, match="another one in sync must lead"):
        found += [frame.size for w in primary.read_frames(0, 30) for frame in w]
    assert "checksum" in primary.damaged
    promote(world, "n2")
    world.settle()
    world.look(2 * RESEND_SECONDS)
    assert bodies(world["n2"], 0, 30) == seqs((0, 30))
    assert world.in_sync == ["n2", "n3"], "what is damaged is no replica"
    with pytest.raises(UnavailableError):
        list(primary.read_frames(0, 30))


def test_damage_met_while_sending_to_a_replica_is_known_to_the_primary(world: World) -> None:
    primary = filled(world)
    with pytest.raises(UnavailableError):
        list(primary.frames(0, 30))
    assert "checksum" in primary.damaged


def test_damaged_primary_without_replicas_serves_events_before_the_damage(world: World) -> None:
    world.cut_off("n2", "n3")
    world.look(LATE_SECONDS + 1.0)
    world.look(LATE_SECONDS + 1.0)
    assert world.in_sync == ["n1"]
    primary = filled(world)
    read: list[int] = []
    with pytest.raises(CorruptError, match="checksum"):
        for window in primary.read_frames(0, 30):
            read += [FrameHeader.unpack(frame, 0, identity(NAME)).end for frame in window]
    assert read == [10, 20]
    assert primary.damaged
    assert primary.confirms(take(primary))


def test_a_trimmed_range_is_no_damage(world: World) -> None:
    primary = world["n1"]
    for _ in range(2):
        take(primary)
        world.settle()
        world.sites["n1"].again()  # each term begins a segment
        world.settle()
        primary = world["n1"]
    take(primary)
    world.settle()
    world.look(2 * RESEND_SECONDS)
    primary.trim(20)
    assert primary.floor > 0
    with pytest.raises(CorruptError):
        list(primary.read_frames(0, 30))
    assert primary.damaged == ""


# Failures.


def fail(world: World, code: int) -> tuple[Site, LossyDisk, int]:
    """The next sync of n2 fails; returns the end of the unsynced events."""
    site = world.sites["n2"]
    disk = site.disk
    assert isinstance(disk, LossyDisk)
    take(world["n1"])
    world.settle()
    disk.failing = code
    end = take(world["n1"])
    world.settle()
    assert disk.failed == 1
    return site, disk, end


def test_replica_whose_sync_failed_leaves_and_comes_back_with_its_disks_events(
    world: World,
) -> None:
    site, disk, end = fail(world, errno.ENOSPC)
    world.look(0.1)
    assert not world["n1"].confirms(end)
    world.look(LATE_SECONDS + 1.0)
    assert world["n1"].confirms(end)
    assert world.in_sync == ["n1", "n3"]
    disk.failing = None
    world.look(MOST_SECONDS)
    world.look(2 * RESEND_SECONDS)
    assert world.in_sync == list(NODES)
    site.journal.close()
    disk.forget_the_cache(world.path / "n2" / NAME)
    site.again()
    assert (site.journal.next_seq, frames_of(site.journal)[-1]) == (end, (10, 20))


def fail_to_cut(world: World) -> ReplicatedJournal:
    """n3 cannot cut events that n2, the primary since, lacks: 20 are in memory, 10 on disk."""
    take(world["n1"])
    world.settle()
    world.away = {"n2"}
    take(world["n1"])
    world.deliver()
    world.away = {"n1"}
    promote(world, "n2")
    site = world.sites["n3"]
    assert isinstance(site.disk, LossyDisk)
    site.disk.failing = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        world.settle()
    site.disk.failing = None
    return site.journal


def test_replica_that_could_not_be_cut_counts_only_once_it_was_reopened(world: World) -> None:
    """A cut that is only held after that leaves its disk in the same state."""
    replica = fail_to_cut(world)
    world.sites["n3"].disk.full = True
    with pytest.raises(HeldError):
        replica.cut(10)
    world.sites["n3"].disk.full = False
    assert world["n2"].reconnected("n3")
    [message] = [message for *_, node, message in world.mail if node == "n3"]
    assert replica.take(message, [], {}) == []
    replica.tick(world.now)
    assert (replica.next_seq, frames_of(replica)) == (10, [(0, 10)])
    assert replica.take(message, [], {}) != []


def test_replica_that_could_not_be_cut_leads_only_once_it_was_reopened(world: World) -> None:
    replica = fail_to_cut(world)
    world.away = {"n1", "n2"}
    world.change(world.membership.promoted_unclean(replica.replica_id, "m"))
    world.settle()
    assert not replica.leads
    world.look(2 * ASK_AGAIN_SECONDS)
    assert (replica.leads, replica.next_seq) == (True, 10)


def test_failing_disk_is_tried_ever_more_rarely(world: World) -> None:
    _, disk, _ = fail(world, errno.ENOSPC)
    tries = []
    for second in range(16):
        before = disk.failed
        world.look(1.0)
        tries += [second] * (disk.failed - before)
    assert tries == [0, 1, 3, 7, 15]


def test_replica_whose_checkpoint_cannot_be_synced_is_not_damaged_and_tried_again(
    world: World,
) -> None:
    """A damaged one is renamed, and its events are sent again."""
    site, disk, end = fail(world, errno.ENOSPC)
    disk.failing, disk.stuck = None, True
    world.look(FIRST_SECONDS)
    assert site.journal.damaged == ""
    disk.stuck = False
    world.look(MOST_SECONDS)
    world.look(2 * RESEND_SECONDS)
    assert (site.journal.next_seq, world.in_sync) == (end, list(NODES))


def test_reopened_replica_without_its_synced_events_is_recreated(world: World) -> None:
    site, disk, _ = fail(world, errno.EIO)
    disk.failing = None
    damage(world, "n2", 1300)
    world.look(FIRST_SECONDS)
    assert site.journal.damaged
    world.look(LATE_SECONDS + 1.0)
    world.look(LATE_SECONDS + 1.0)
    assert world.in_sync == ["n1", "n3"]


def test_damaged_replica_that_could_not_be_renamed_is_renamed_later(world: World) -> None:
    replica = filled(world)
    replica.mark_damaged("a bit")
    promote(world, "n2")
    world.settle()
    world.look(2 * RESEND_SECONDS)
    aside = world.path / "n1" / f".{NAME}.damaged"
    aside.touch()  # a directory cannot be renamed to the name of a file
    with pytest.raises(OSError, match="Not a directory"):
        replica.set_aside_damaged()
    aside.unlink()
    assert replica.set_aside_damaged() == aside


def test_log_says_what_follows_from_a_damaged_replica(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower's primary goes on; it was said that another one must lead."""
    filled(world)
    for node in ("n2", "n1"):
        world[node].mark_damaged("a bit")
    text = f"the replica of journal {NAME} here is damaged; "
    assert [message for message in caplog.messages if message.startswith(text)] == [
        f"{text}its primary recreates it, if there is one: a bit",
        f"{text}another one must lead: a bit",
    ]


def test_replica_that_may_lack_events_says_why_it_does_not_lead(world: World) -> None:
    world.sites["n1"].again()
    with pytest.raises(HeldError, match="not the primary yet: ZooKeeper has not confirmed it"):
        take(world["n1"])
    membership = Membership("l", 9, world["n1"].replica_id, ("n1/x", "n2/x"), ("n1", "n2"))
    world["n1"].older = "it was restored"
    world["n1"].set_membership(membership, 100, 1)
    with pytest.raises(HeldError, match="not the primary yet: it was restored"):
        take(world["n1"])


def test_replica_that_was_set_aside_is_not_written_any_more(world: World) -> None:
    """Its descriptors may be those of other files by now."""
    take(world["n1"])
    world.settle()
    aside = world["n3"].set_aside()
    assert aside == world.path / "n3" / f".{NAME}.damaged"
    with pytest.raises(JournalFailedError):
        world["n3"].trim(0)
    take(world["n1"])
    world.settle()
    assert world["n3"].next_seq == 10
