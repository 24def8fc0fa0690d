"""Invariants of a journal that has replicas, checked after every step.

- I1, I9: every answered event is on the disk of every replica in sync, under its seq and term, and
  is read by every reader that comes as far.
- I3, I4: a seq and a term never name two events; a term has one primary.
- I5, I11: a replica whose log is the beginning of a primary's has the same events as that primary,
  and as readers saw.
- I7, I24: an event that a reader has seen never changes, and is on every replica in sync.
- I10: a primary was in sync when it was made one.
- I6: a process that knows of a later term answers nothing.
- I15: nor does one with fewer replicas in sync than it is to have.
"""

from __future__ import annotations

from collections.abc import Collection

from flumeng.journal.replication.follower import Follower
from flumeng.journal.replication.history import Log
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.journal.replication.primary import Primary
from tests.testkit.simulation.replicas.disk import Event
from tests.testkit.simulation.replicas.host import Host


class Checks:
    """``answered``: events that clients know to be safe, by seq; ``seen``: events that readers have
    read.

    ``acked``: readers need no events below it. ``answered_without_some``: the number of events that
    were answered while not all replicas were in sync.
    """

    def __init__(self) -> None:
        self.answered: dict[int, Event] = {}
        self.seen: dict[int, Event] = {}
        self.acked = 0
        self.answered_without_some = 0
        self._named: dict[tuple[int, int], Event] = {}
        self._primaries: dict[int, Log] = {}
        """The log that the primary of a term began with: the same object as long as it runs."""
        self._read: dict[str, tuple[int, int]] = {}

    def written(self, seq: int, event: Event) -> None:
        known = self._named.setdefault((event.term, seq), event)
        assert known == event, f"seq {seq} of term {event.term} names {known} and {event}"

    def after_step(self, hosts: Collection[Host], membership: Membership) -> None:
        for host in hosts:
            if isinstance(host.role, Primary) and not host.paused:
                self._primary(host, host.role)
        self._replicas({host.name: host for host in hosts}, membership)
        self._matched(hosts, membership.term)

    def _primary(self, host: Host, role: Primary) -> None:
        owner = self._primaries.setdefault(role.term, role.first)
        assert owner is role.first, f"term {role.term} has two primaries"
        self._answer(host, role)
        term, end = self._read.get(host.name, (0, 0))
        start = max(host.disk.floor, end if term == role.term else 0)
        for seq in range(start, role.checkpoint):
            event = host.disk.at(seq)
            known = self.seen.setdefault(seq, event)
            assert known == event, f"a reader saw {known} at seq {seq}, and now {event}"
            if seq in self.answered:
                assert self.answered[seq] == event, f"another event than was answered at {seq}"
        self._read[host.name] = (role.term, role.checkpoint)

    def _answer(self, host: Host, role: Primary) -> None:
        if not role.takes:
            return
        for seq in [seq for seq in host.waiting if seq < role.answered]:
            event = host.waiting.pop(seq)
            later = host.membership is not None and host.membership.term > role.term
            assert not later, f"{role.id} knows that term {role.term} is over, and answers {seq}"
            in_sync = len(role.membership.in_sync)
            assert in_sync >= host.min_in_sync, f"{role.id} answers {seq} with {in_sync} in sync"
            if in_sync < len(role.membership.nodes):
                self.answered_without_some += 1
            assert seq < host.disk.floor or host.disk.at(seq) == event
            assert self.answered.setdefault(seq, event) == event, f"two answers for seq {seq}"

    def _replicas(self, hosts: dict[str, Host], membership: Membership) -> None:
        for replica in membership.in_sync:
            disk = hosts[node_of(replica)].disk
            if disk.id != replica:
                continue  # its disk is lost, and it will say so
            safe = max(self.seen, default=-1) + 1
            assert disk.safe >= safe, f"{replica} is in sync and lacks {disk.safe} of {safe}"
            for promised in (self.answered, self.seen):
                for seq, event in promised.items():
                    if seq >= disk.floor:
                        assert seq < disk.safe, f"{replica} is in sync without {event} at {seq}"
                        assert disk.at(seq) == event, f"{replica} has {disk.at(seq)}, not {event}"

    def _matched(self, hosts: Collection[Host], latest: int) -> None:
        primaries = {host.role.term: host.disk for host in hosts if isinstance(host.role, Primary)}
        for host in hosts:
            if not isinstance(host.role, Follower) or not host.role.matched:
                continue
            disk, name = host.disk, host.disk.id
            if host.role.term == latest:
                for seq in range(disk.floor, min(disk.end, len(self.seen))):
                    seen = self.seen[seq]
                    assert disk.at(seq) == seen, f"{name} matched with {disk.at(seq)}, not {seen}"
            if primary := primaries.get(host.role.term):
                assert disk.end <= primary.end, f"{name} goes on behind its primary"
                start = max(disk.floor, primary.floor)
                same = [disk.at(seq) == primary.at(seq) for seq in range(start, disk.end)]
                assert all(same), f"{name} differs from its primary"
