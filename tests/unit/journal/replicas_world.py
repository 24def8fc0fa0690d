"""Replicas of a journal on several nodes, over real directories: a test delivers their messages by
hand, and sets the state of ZooKeeper."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.journal.log import reading
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.encryption import Keyring
from flumeng.journal.log.errors import HeldError, JournalFailedError
from flumeng.journal.log.journal_cipher import KeyReference
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.journal.replication.messages import Begin, Frames, Reset, ToFollower
from flumeng.journal.serving import replica_wire
from flumeng.journal.serving.replica_wire import Envelope
from flumeng.journal.serving.wire import FRAMES_SCHEMA, frames_of
from tests.testkit.journal import numbered_events

NAME = "web.n1.0.0a1b2c3d"
NODES = ("n1", "n2", "n3")


def is_segment(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").readlink().suffix == ".segment"


class SmallDisk(Disk):
    """A disk with ``room`` for so many frames; ``full`` means not a byte. ``unsynced``: syncs of
    segments fail."""

    room: int | None = None
    full = unsynced = False

    def write(self, fd: int, parts: Sequence[Any], offset: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.room is not None and is_segment(fd):
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= 1
        super().write(fd, parts, offset)

    def sync(self, fd: int) -> None:
        if self.unsynced and is_segment(fd):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


class Site:
    """A node: its replica and the requests that it makes."""

    def __init__(self, world: World, name: str, lineage: str) -> None:
        self.name, self.world, self.disk = name, world, SmallDisk()
        self.proposals: list[tuple[int, Membership]] = []
        self.took_bytes = 0
        key = KeyReference.of(world.keyring) if name == "n1" else None
        replica = Replica.new(name, lineage)
        made = ReplicaJournal.make(world.path / name, NAME, replica, key=key, disk=self.disk)
        made.cipher.use(world.keyring)
        self.open(made)

    def open(self, opened: ReplicaJournal) -> None:
        self.journal = ReplicatedJournal(
            opened,
            self,
            closes=self.name != "n1",
            clock=lambda: self.world.now,
            least_term=lambda: 0,
        )

    def again(self) -> None:
        """A new process after a kill."""
        self.journal.close()
        self.open(ReplicaJournal.load(self.world.path / self.name / NAME, disk=self.disk))

    def post(self, node: str, journal: ReplicatedJournal, message: ToFollower) -> None:
        self.world.mail.append((self, journal, node, message))

    def took(self, nbytes: int) -> None:
        self.took_bytes += nbytes

    def alive_at(self, node: str) -> float:
        return 0.0 if {node, self.name} & self.world.away else self.world.now

    def proposal(self, journal: str, version: int, membership: Membership) -> None:
        assert journal == NAME
        self.proposals.append((version, membership))


class World:
    """All nodes, ZooKeeper, and the messages on their way.

    Nodes in ``away`` send and receive nothing. With a ``keyring``, which only n1 has, events are
    encrypted.
    """

    def __init__(self, path: Path, keyring: Keyring | None = None) -> None:
        self.path, self.keyring = path, keyring
        self.now = 1000.0
        self.mail: deque[tuple[Site, ReplicatedJournal, str, ToFollower]] = deque()
        self.away: set[str] = set()
        self.sites = {name: Site(self, name, "l") for name in NODES}
        first = self.sites["n1"].journal.replica_id
        self.membership = Membership("l", 1, first, (first,), NODES)
        self.version, self.created = 0, 1

    def __getitem__(self, name: str) -> ReplicatedJournal:
        return self.sites[name].journal

    def id(self, name: str) -> str:
        return self[name].replica_id

    def change(self, membership: Membership) -> None:
        self.membership, self.version = membership, self.version + 1

    def lose_record(self, instead: Membership) -> None:
        """Replace ZooKeeper's record by that of an export."""
        self.membership, self.version, self.created = instead, 0, self.created + 1

    @property
    def in_sync(self) -> list[str]:
        return sorted(node_of(replica) for replica in self.membership.in_sync)

    def grant(self) -> bool:
        """Carry out the proposals; returns whether there were any."""
        wanted = False
        for site in self.sites.values():
            proposals, site.proposals = site.proposals, []
            if site.name in self.away:
                continue
            for version, membership in proposals:
                wanted = True
                if version == self.version:
                    self.change(membership)
        return wanted

    def tell(self) -> None:
        for site in self.sites.values():
            if site.name not in self.away:
                site.journal.set_membership(self.membership, self.version, self.created)

    def deliver(self) -> bool:
        """Deliver all messages and their consequences; returns whether there were any."""
        any_ = bool(self.mail)
        while self.mail:
            sender, journal, node, message = self.mail.popleft()
            if not {sender.name, node} & self.away:
                self.carry(sender, journal, self.sites[node], message)
        return any_

    def carry(
        self, sender: Site, journal: ReplicatedJournal, to: Site, message: ToFollower
    ) -> None:
        state, frames = None, list[pa.Buffer]()
        if isinstance(message, Frames):
            message = journal.part_of(message, message.start, message.end)
            found = (f for w in journal.frames(message.start, message.end) for f in w)
            frames = list(frames_of(over_a_wire(list(found)), "n1"))
        else:
            state = journal.source_state_at_floor
        key = journal.cipher.reference
        envelope = replica_wire.decode(replica_wire.encode(Envelope(NAME, message, state, key)))
        assert isinstance(envelope.message, Begin | Frames | Reset)
        try:
            state = envelope.state or {}
            answers = to.journal.take(envelope.message, frames, state, envelope.key)
        except (HeldError, JournalFailedError):
            return
        for answer in answers:
            back = replica_wire.decode(replica_wire.encode(Envelope(NAME, answer))).message
            assert not isinstance(back, Begin | Frames | Reset)
            sender.journal.receive(to.name, back)

    def settle(self) -> None:
        """Deliver until only time could change anything."""
        for _ in range(100):
            self.tell()
            if not (self.grant() | self.deliver()):
                return
        pytest.fail("the replicas do not come to rest")

    def cut_off(self, *names: str) -> None:
        """Cut off the nodes; their last messages are a little old."""
        self.look(0.0)
        self.away = set(names)
        self.look(0.1)

    def look(self, seconds: float) -> None:
        """Advance the clock and look."""
        self.now += seconds
        for site in self.sites.values():
            site.journal.tick(self.now)
        self.settle()


def over_a_wire(frames: list[pa.Buffer]) -> pa.RecordBatch:
    rows = pa.array([frame.to_pybytes() for frame in frames], pa.binary())
    batch = pa.RecordBatch.from_arrays([rows], schema=FRAMES_SCHEMA)
    return pa.ipc.read_record_batch(batch.serialize(), FRAMES_SCHEMA)


def take(journal: ReplicatedJournal, count: int = 10) -> int:
    """Append as the thread of a group commit; returns the synced end on this disk."""
    start = journal.next_seq
    journal.append(numbered_events(start, count), {"cursor": start + count})
    return journal.sync()


def bodies(journal: ReplicatedJournal, start: int, end: int) -> list[int]:
    frames = (frame for window in journal.read_frames(start, end) for frame in window)
    rows = reading.rows(frames, NAME, start, end, replayed=False)
    return [int(body.rstrip(b".")) for batch in rows for body in batch["body"].to_pylist()]


def seqs(*parts: tuple[int, int]) -> list[int]:
    return [seq for start, end in parts for seq in range(start, end)]


def promote(world: World, name: str) -> None:
    world.change(world.membership.promoted(world.id(name)))
