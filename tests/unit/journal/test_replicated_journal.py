"""Replicas of a journal over real directories, with messages that a test delivers by hand.

Protects that confirmed events are on every replica in sync and stay when any of these leads next,
and that a former primary confirms nothing, whichever events it has.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.journal.log.errors import AboveSafeError, HeldError, JournalFailedError
from flumeng.journal.log.group_commit import GroupCommit
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replicas.replica_lag import LATE_SECONDS, RESEND_SECONDS
from flumeng.journal.replicas.replicated_journal import ASK_AGAIN_SECONDS
from flumeng.platform.errors import UserError
from tests.testkit.journal import numbered_events
from tests.unit.journal.replicas_world import (
    NAME,
    NODES,
    SmallDisk,
    World,
    bodies,
    promote,
    seqs,
    take,
)


class UnnamedDisk(SmallDisk):
    """``unnamed``: no file with the id and lineage of a replica can be written."""

    unnamed = False

    def write(self, fd: int, parts: Sequence[Any], offset: int) -> None:
        if self.unnamed and Path(f"/proc/self/fd/{fd}").readlink().stem == "replica":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, parts, offset)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world in which n1 leads and all are in sync."""
    world = World(tmp_path)
    world.settle()
    assert world.in_sync == list(NODES)
    yield world
    for site in world.sites.values():
        site.journal.close()


# Leaders.


def test_no_replica_leads_and_nothing_is_taken_before_zookeepers_record(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(HeldError, match="ZooKeeper has not confirmed it"):
        take(world["n1"])
    with pytest.raises(UserError, match="not closed"):
        world["n1"].close_for_appends()
    world.tell()
    assert [site.journal.leads for site in world.sites.values()] == [True, False, False]
    assert take(world["n1"]) == 10


def test_each_start_of_a_primary_has_a_term_of_its_own(world: World) -> None:
    take(world["n1"])
    world.settle()
    term = world.membership.term
    world.sites["n1"].again()
    world.tell()
    with pytest.raises(HeldError):  # the term is that of the process before
        take(world["n1"])
    world.settle()
    assert (world.membership.term, world["n1"].term) == (term + 1, term + 1)
    assert world.in_sync == list(NODES)


def test_primary_that_knows_a_later_term_than_zookeeper_asks_for_one_above(world: World) -> None:
    """An older tree may have been imported."""
    world.sites["n1"].again()
    world.settle()
    world.sites["n1"].again()
    world.change(replace(world.membership, term=1))
    world.settle()
    assert world["n1"].leads
    assert world.membership.term == 3


def test_lost_proposal_to_lead_is_repeated(world: World) -> None:
    """ZooKeeper's record stays the same then, and the same record causes no second notice."""
    world.sites["n1"].again()
    world.tell()
    (lost,) = world.sites["n1"].proposals
    world.sites["n1"].proposals.clear()
    world["n1"].tick(world.now + 0.25)
    assert world.sites["n1"].proposals == []
    world["n1"].tick(world.now + ASK_AGAIN_SECONDS + 0.25)
    assert world.sites["n1"].proposals == [lost]
    world.settle()
    assert world["n1"].leads


def test_promoted_replica_with_a_full_disk_leads_once_there_is_room(world: World) -> None:
    world.away = {"n1"}
    promote(world, "n2")
    world.sites["n2"].disk.full = True
    with pytest.raises(HeldError):
        world.tell()
    assert not world["n2"].leads
    world.sites["n2"].disk.full = False
    world["n2"].tick(world.now + ASK_AGAIN_SECONDS + 1.0)
    assert world["n2"].leads


def test_replica_leads_another_lineage_once_that_is_on_its_disk(world: World) -> None:
    """Killed with the old one, it would empty itself as the next primary's replica in sync."""
    end = take(world["n1"])
    world.settle()
    world.look(2 * RESEND_SECONDS)
    site, disk = world.sites["n2"], UnnamedDisk()
    site.disk = disk
    site.again()
    disk.unnamed = True
    world.away = {"n1"}
    world.change(world.membership.promoted_unclean(world.id("n2"), "m"))
    with pytest.raises(HeldError, match="its new lineage cannot be written: No space left"):
        world.tell()
    assert not world["n2"].leads
    disk.unnamed = False
    world.look(ASK_AGAIN_SECONDS + 1.0)
    world.look(2 * RESEND_SECONDS)
    disk.unnamed = True
    assert (world["n2"].leads, world.in_sync) == (True, ["n2", "n3"])
    promote(world, "n3")
    world.settle()
    world.look(2 * RESEND_SECONDS)
    assert world.in_sync == ["n2", "n3"]
    site.again()
    world.tell()
    world.deliver()
    assert (world["n2"].lineage, world["n2"].next_seq) == ("m", end)


def test_replica_in_its_lineage_leads_with_a_full_disk(world: World) -> None:
    """Its checkpoint may be written later."""
    site, disk = world.sites["n2"], UnnamedDisk()
    site.disk = disk
    site.again()
    disk.unnamed = True
    promote(world, "n2")
    world.settle()
    assert world["n2"].leads


def test_older_record_than_the_known_one_is_ignored(world: World) -> None:
    old = world.membership.promoted(world.id("n2"))
    for name in ("n1", "n2"):
        world[name].set_membership(old, world.version - 1, world.created)
    assert (world["n1"].leads, world["n2"].leads) == (True, False)


# Confirmed and readable events.


def test_events_are_confirmed_and_shown_once_all_replicas_in_sync_have_them(world: World) -> None:
    primary = world["n1"]
    woken: list[bool] = []
    primary.on_confirmed(lambda: woken.append(True))
    world.away = {"n3"}
    end = take(primary)
    assert (primary.confirms(end), primary.safe) == (False, 0)
    world.deliver()
    assert (primary.confirms(end), primary.safe) == (False, 0), "n3 has not answered"
    with pytest.raises(AboveSafeError):
        list(primary.read_frames(0, end))
    assert woken == []
    world.away = set()
    primary.reconnected("n3")
    world.deliver()
    assert (primary.confirms(end), primary.safe) == (True, end)
    assert woken
    assert not primary.confirms(end + 1)
    assert bodies(primary, 0, end) == seqs((0, end))


def test_events_not_on_the_primarys_own_disk_are_not_confirmed(world: World) -> None:
    primary = world["n1"]
    primary.append(numbered_events(0, 10))
    world.deliver()
    assert world["n2"].next_seq == 10
    assert not primary.confirms(10)
    primary.sync()
    assert primary.confirms(10)


@pytest.mark.slow
def test_replica_shows_confirmed_events_and_holds_the_source_state(world: World) -> None:
    take(world["n1"])
    world.settle()
    replica = world["n2"]
    assert (replica.next_seq, replica.state) == (10, {"cursor": 10})
    assert replica.safe == 0, "it has not heard yet that all have it"
    world.look(2 * RESEND_SECONDS)
    assert replica.safe == 10
    assert bodies(replica, 0, 10) == seqs((0, 10))


def test_lag_of_each_replica_is_known(world: World) -> None:
    world.away = {"n3"}
    take(world["n1"])
    world.settle()
    assert world["n1"].lags == {"n2": 0, "n3": 10}
    assert world["n2"].lags == {}


def test_nothing_is_taken_or_confirmed_with_too_few_replicas_in_sync(world: World) -> None:
    primary = world["n1"]
    end = take(primary)
    world.settle()
    assert primary.confirms(end)
    primary.require_in_sync(4)
    assert not primary.confirms(end)
    with pytest.raises(HeldError, match="3 replicas in sync, 4 are needed") as held:
        take(primary)
    assert held.value.cause == "3 replicas in sync, 4 are needed"
    primary.require_in_sync(3)
    assert take(primary) == 20


# Late replicas.


def test_replica_that_was_cut_off_leaves_and_catches_up_when_back(world: World) -> None:
    primary = world["n1"]
    primary.require_in_sync(2)
    world.cut_off("n3")
    first = take(primary)
    world.look(LATE_SECONDS - 1.0)
    assert (primary.confirms(first), world.in_sync) == (False, ["n1", "n2", "n3"])
    world.look(2.0)
    assert (primary.confirms(first), world.in_sync) == (True, ["n1", "n2"])
    second = take(primary)
    world.look(LATE_SECONDS + 1.0)
    assert primary.confirms(second)
    assert world["n3"].next_seq == 0
    world.away = set()
    world.look(2 * RESEND_SECONDS)
    assert world.in_sync == ["n1", "n2", "n3"]
    assert (world["n3"].next_seq, world["n3"].state) == (second, {"cursor": second})


def test_needed_replica_does_not_leave(world: World) -> None:
    """It may still be promoted, and without it nothing could be confirmed all the same."""
    primary = world["n1"]
    primary.require_in_sync(3)
    world.cut_off("n3")
    end = take(primary)
    world.look(LATE_SECONDS + 1.0)
    world.look(LATE_SECONDS + 1.0)
    assert (primary.confirms(end), world.in_sync) == (False, ["n1", "n2", "n3"])


def test_late_replica_counts_until_zookeeper_answers(world: World) -> None:
    primary, site = world["n1"], world.sites["n1"]
    world.cut_off("n3")
    end = take(primary)
    world.deliver()
    world.now += LATE_SECONDS + 1.0
    primary.tick(world.now)
    assert len(site.proposals) == 1
    assert not primary.confirms(end)
    world.now += ASK_AGAIN_SECONDS + 1.0
    primary.tick(world.now)
    assert site.proposals[0] == site.proposals[1], "it may have been lost"
    assert not primary.confirms(end)
    world.settle()
    assert primary.confirms(end)


# Another one leads.


def test_promoted_replica_closes_and_serves_and_the_former_primary_is_cut(world: World) -> None:
    """The events at its end were never confirmed, and the source state is that of before."""
    old, new = world["n1"], world["n2"]
    confirmed = take(old)
    world.settle()
    world.away = {"n1"}
    lost = take(old)
    world.mail.clear()
    promote(world, "n2")
    world.settle()
    assert (new.leads, new.closed, new.next_seq, new.safe) == (True, True, confirmed, confirmed)
    assert bodies(new, 0, confirmed) == seqs((0, confirmed))
    with pytest.raises(UserError, match="closed"):
        take(new)
    assert (old.leads, old.confirms(lost)) == (True, False), "it has heard nothing"
    world.away = set()
    world.settle()
    world.look(2 * RESEND_SECONDS)
    assert (old.leads, old.superseded, old.closed) == (False, True, True)
    with pytest.raises(JournalFailedError, match="another replica is the primary"):
        old.confirms(confirmed)
    with pytest.raises(JournalFailedError, match="another replica is the primary"):
        take(old)
    assert (old.next_seq, old.state) == (confirmed, {"cursor": confirmed})
    assert world.in_sync == ["n1", "n2", "n3"]


def test_primary_that_learns_a_later_term_from_a_replica_stops_leading(world: World) -> None:
    """It has not learned of it from ZooKeeper."""
    old = world["n1"]
    world.away = {"n1"}
    promote(world, "n2")
    world.settle()
    world.away = set()
    end = take(old)
    world.deliver()
    assert not old.leads
    with pytest.raises(JournalFailedError):
        old.confirms(end)


def test_former_primary_confirms_nothing_when_it_leads_again(world: World) -> None:
    """Its unconfirmed events may be gone, and other events have these seqs."""
    old = world["n1"]
    world.away = {"n1"}
    end = take(old)
    world.mail.clear()
    promote(world, "n2")
    world.settle()
    world.away = set()
    world.settle()
    world.look(2 * RESEND_SECONDS)
    promote(world, "n1")
    world.settle()
    with pytest.raises(JournalFailedError):
        old.confirms(end)
    world.sites["n1"].again()
    world.settle()
    assert world["n1"].leads


def test_journal_superseded_before_it_led_has_failed(world: World) -> None:
    promote(world, "n2")
    world.settle()
    world.sites["n1"].again()
    with pytest.raises(HeldError):
        take(world["n1"])
    world.settle()
    with pytest.raises(JournalFailedError, match="another replica is the primary"):
        take(world["n1"])
    with pytest.raises(UserError):
        world["n1"].close_for_appends()


def test_new_group_commit_learns_at_once_that_another_replica_leads(world: World) -> None:
    """No event has to come first: until then a flow would keep a journal that takes none."""
    promote(world, "n2")
    world.settle()
    failed = threading.Event()
    commits: GroupCommit[pa.RecordBatch] = GroupCommit(
        world["n1"], lambda _: [], on_failed=lambda _: failed.set()
    )
    assert failed.wait(10)
    commits.stop()


def test_replica_of_anothers_journal_leads_as_often_as_it_is_promoted(world: World) -> None:
    """Nothing is appended to it, so that no sender waits for its events."""
    end = take(world["n1"])
    world.settle()
    for name in ("n2", "n3", "n2"):
        promote(world, name)
        world.settle()
        assert [site.name for site in world.sites.values() if site.journal.leads] == [name]
        assert (world[name].closed, world[name].safe) == (True, end)
        world.look(2 * RESEND_SECONDS)
        assert world.in_sync == list(NODES)


def test_replicas_restart_under_another_lineage(world: World) -> None:
    """An operator gave up events that only others had."""
    world.cut_off("n3")
    take(world["n1"])
    world.settle()
    world.look(LATE_SECONDS + 1.0)
    assert world.in_sync == ["n1", "n2"]
    world.look(2 * RESEND_SECONDS)
    assert world["n2"].safe == 10
    world.away = {"n1", "n2"}
    world.change(world.membership.promoted_unclean(world.id("n3"), "m"))
    world.settle()
    assert (world["n3"].leads, world["n3"].next_seq) == (True, 0)
    world.away = set()
    world.look(2 * RESEND_SECONDS)
    for name in NODES:
        assert (world[name].next_seq, world[name].lineage, world[name].state) == (0, "m", {})
    assert world.in_sync == list(NODES)


def test_replica_that_begins_at_the_floor_has_the_source_state_there(world: World) -> None:
    primary, site = world["n1"], world.sites["n3"]
    for _ in range(3):
        take(primary)
        world.settle()
        world.sites["n1"].again()  # each term begins a segment
        world.settle()
        primary = world["n1"]
    site.journal.remove()
    site.open(ReplicaJournal.make(world.path / "n3", NAME, Replica.new("n3", "l"), disk=site.disk))
    world.look(2 * RESEND_SECONDS)
    take(primary)
    world.look(2 * RESEND_SECONDS)
    primary.trim(30)
    assert primary.floor > 0
    site.journal.remove()
    site.open(ReplicaJournal.make(world.path / "n3", NAME, Replica.new("n3", "l"), disk=site.disk))
    world.look(2 * RESEND_SECONDS)
    assert (site.journal.floor, site.journal.next_seq) == (primary.floor, 40)
    assert site.journal.source_state_at_floor == {"cursor": primary.floor}
    assert site.journal.state == {"cursor": 40}
    assert world.id("n3") in world.membership.in_sync, "under its new name"


# Disks.


def test_replica_with_a_full_disk_keeps_its_events_and_continues(world: World) -> None:
    primary, site = world["n1"], world.sites["n2"]
    site.disk.room = 2
    for _ in range(4):
        primary.append(numbered_events(primary.next_seq, 10), {"cursor": primary.next_seq + 10})
    end = primary.sync()
    world.deliver()
    assert site.journal.next_seq == 20
    assert not primary.confirms(end)
    site.disk.room = None
    world.look(2 * RESEND_SECONDS)
    world.look(2 * RESEND_SECONDS)
    assert (site.journal.next_seq, site.journal.state) == (40, {"cursor": 40})
    assert primary.confirms(end)
    assert world.in_sync == list(NODES)


def test_acks_of_before_a_crash_are_no_damage_with_an_older_checkpoint(world: World) -> None:
    """Readers have seen the events that they acked, and so all replicas had them."""
    primary, site = world["n1"], world.sites["n1"]
    take(primary)
    world.settle()
    stale = (world.path / "n1" / NAME / "replica").read_bytes()
    assert primary.safe == 10
    site.journal.close()
    (world.path / "n1" / NAME / "replica").write_bytes(stale)
    site.open(ReplicaJournal.load(world.path / "n1" / NAME, disk=site.disk))
    assert site.journal.safe == 0
    site.journal.trim(10)
    world.settle()
    site.journal.maintain()
    assert (site.journal.leads, site.journal.safe, site.journal.acked) == (True, 10, 10)


def test_closed_journal_touches_no_file_any_more(world: World) -> None:
    """Its descriptors may be those of other files by now."""
    take(world["n1"])
    world.settle()
    world["n2"].close()
    others = [os.open(world.path / f"other-{n}", os.O_RDWR | os.O_CREAT) for n in range(20)]
    take(world["n1"])
    world.settle()
    promote(world, "n3")
    world.settle()
    world.look(LATE_SECONDS + 1.0)
    assert [os.fstat(fd).st_size for fd in others] == [0] * len(others)
    for fd in others:
        os.close(fd)
