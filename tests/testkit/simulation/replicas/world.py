"""One seeded world: hosts, wires, ZooKeeper, a master, clients, and their failures."""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import methodcaller

from flumeng.journal.replication.follower import Follower
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.journal.replication.primary import Primary
from flumeng.platform.errors import FlumengError
from tests.testkit.simulation.replicas.checks import Checks
from tests.testkit.simulation.replicas.host import CrashedError, Host, Letter, Proposal

MESSAGES_AT_ONCE = 60
SETTLE_ROUNDS = 60


class World:
    """``run`` takes ``steps`` steps and checks after each; then all faults heal, and all replicas
    must become equal.

    All chance comes from the seed.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.checks = Checks()
        names = [f"n{number}" for number in range(self.rng.choice([3, 3, 4, 5]))]
        min_in_sync = self.rng.choice([1, 1, 2])
        self.hosts = {
            name: Host(name, self.rng, self._post, self._proposal, min_in_sync) for name in names
        }
        self.letters: list[Letter] = []
        self.posted: list[Letter] = []
        self.proposals: list[Proposal] = []
        chosen = names[: self.rng.choice([2, 3, 3])]
        first = f"{names[0]}/0"
        self.membership = Membership("a", 1, first, (first,), tuple(chosen))
        self.past = [self.membership]
        self.values = 0
        self.min_in_sync = min_in_sync
        fragile = self.rng.choice([0.0, 0.0, 0.02])
        forgetful, near = self.rng.choice([0.3, 0.02]), self.rng.choice([2, 20])
        for host in self.hosts.values():
            host.crash_share, host.remember_share, host.near = fragile, forgetful, near
            host.start()
        self._troubles = self._drawn()

    @property
    def version(self) -> int:
        return len(self.past) - 1

    def _drawn(self) -> list[tuple[Callable[[], None], int]]:
        """Steps with their weights: each world draws its own faults."""
        some = self.rng.choice([0, 1, 1, 2])
        return [
            (self._deliver, 60),
            (self._append, 22),
            (self._sync, 30),
            (self._look, 12),
            (self._grant, 12),
            (self._master, 12),
            (self._tell, 6),
            (self._late, self.rng.choice([some, 6])),
            (self._lose_letter, some),
            (self._double_letter, self.rng.choice([some, 6])),
            (self._crash, self.rng.choice([0, 2, 4])),
            (self._start, 5),
            (self._pause, self.rng.choice([0, 2, 4])),
            (self._wake, 6),
            (self._expire, self.rng.choice([0, 3, 6])),
            (self._connect, 6),
            (self._trim, self.rng.choice([2, 12])),
            (self._move, self.rng.choice([0, 0, 1])),
            (self._lose_disk, self.rng.choice([0, 0, 1])),
        ]

    def run(self, steps: int) -> None:
        deeds, weights = zip(*self._troubles, strict=True)
        for deed in self.rng.choices(deeds, weights, k=steps):
            self.do(deed)
        self.settle()

    def do(self, deed: Callable[[], None]) -> None:
        deed()
        self.checks.after_step(self.hosts.values(), self.membership)

    def settle(self) -> None:
        """End all faults: every letter is delivered, and every host continues."""
        for host in self.hosts.values():
            host.crash_share, host.paused, host.session = 0.0, False, True
            if host.role is None:
                host.start()
        for _ in range(SETTLE_ROUNDS):
            self.do(self._master)
            for host in self.hosts.values():
                self._act(host, lambda host: host.look(self.membership, self.version))
                self._act(host, Host.again)
                self._act(host, Host.sync_all)
                for name in self.hosts:
                    if not self._holds(host, name):
                        self._act(host, methodcaller("late", name))
                    self._act(host, methodcaller("tell", name))
            while self.proposals:
                self.do(self._grant)
            for letter in self.letters:
                self._act(self.hosts[letter.target], methodcaller("take", letter))
            self.letters = []
            self.checks.after_step(self.hosts.values(), self.membership)
            if self._is_at_rest():
                return
        raise AssertionError(f"no rest: {self.membership}, {[h.role for h in self.hosts.values()]}")

    def _holds(self, host: Host, name: str) -> bool:
        """Whether the replica that is in sync by its node's name is still there."""
        role = host.role
        if not isinstance(role, Primary):
            return True
        return all(
            self.hosts[name].disk.id == replica
            for replica in role.membership.in_sync
            if node_of(replica) == name
        )

    def _is_at_rest(self) -> bool:
        primary = self.hosts[node_of(self.membership.primary)]
        disks = [self.hosts[name].disk for name in self.membership.nodes]
        return (
            isinstance(primary.role, Primary)
            and not primary.waiting_below(primary.role.checkpoint)
            and {node_of(replica) for replica in self.membership.in_sync}
            == set(self.membership.nodes)
            and all(disk.end == primary.disk.end for disk in disks)
            and all(self._same(disk.floor, primary) for disk in disks)
            and primary.role.checkpoint == primary.disk.end
        )

    def _same(self, floor: int, primary: Host) -> bool:
        start = max(floor, primary.disk.floor)
        wanted = primary.disk.read(start, primary.disk.end)
        return all(
            self.hosts[name].disk.read(max(start, self.hosts[name].disk.floor), primary.disk.end)
            == wanted[max(0, self.hosts[name].disk.floor - start) :]
            for name in self.membership.nodes
        )

    # Letters under way.

    def _post(self, letter: Letter) -> None:
        for seq, event in enumerate(letter.events, getattr(letter.message, "start", 0)):
            self.checks.written(seq, event)
        if len(self.letters) >= MESSAGES_AT_ONCE:
            self.letters.pop(self.rng.randrange(len(self.letters)))
        self.letters.append(letter)
        self.posted.append(letter)

    def _proposal(self, proposal: Proposal) -> None:
        self.proposals.append(proposal)

    def _act(self, host: Host, deed: Callable[[Host], None]) -> None:
        if not host.runs:
            return
        try:
            deed(host)
        except CrashedError:
            host.crash()

    def _deliver(self) -> None:
        if self.letters:
            place = self.rng.randrange(min(len(self.letters), self.rng.choice([1, 3, 60])))
            letter = self.letters[place]
            if self.hosts[letter.target].paused:
                return
            del self.letters[place]
            self._act(self.hosts[letter.target], lambda host: host.take(letter))

    def _lose_letter(self) -> None:
        if self.letters:
            self.letters.pop(self.rng.randrange(len(self.letters)))

    def _double_letter(self) -> None:
        """Repeat a letter, perhaps one that was delivered long ago."""
        if self.posted:
            self.letters.append(self.rng.choice(self.posted))

    # ZooKeeper and the master.

    def _put(self, membership: Membership) -> None:
        self.membership = membership
        self.past.append(membership)

    def _grant(self) -> None:
        """A proposal reaches ZooKeeper; its author may or may not get the reply."""
        if not self.proposals:
            return
        proposal = self.proposals.pop(self.rng.randrange(len(self.proposals)))
        host = self.hosts[proposal.host]
        if proposal.version == self.version:
            self._put(proposal.membership)
        if host.session and self.rng.random() < 0.7:
            self._act(host, lambda host: host.look(self.membership, self.version))

    def _look(self) -> None:
        """The record that a host reads may be outdated."""
        host = self._any()
        if host.session:
            version = max(0, self.version - self.rng.choice([0, 0, 0, 1, 2]))
            self._act(host, lambda host: host.look(self.past[version], version))
            if self.rng.random() < 0.3:
                self._act(host, Host.again)

    def _master(self) -> None:
        """Replace a primary by a live replica in sync when its session has ended or its host
        reports no such replica."""
        primary = self.hosts[node_of(self.membership.primary)]
        if primary.session and primary.disk.id == self.membership.primary:
            return
        live = [c for c in self.membership.in_sync if self.hosts[node_of(c)].session]
        live = [replica for replica in live if self.hosts[node_of(replica)].disk.id == replica]
        if live:
            try:
                self._put(self.membership.promoted(self.rng.choice(live)))
            except FlumengError:
                return

    def _move(self) -> None:
        """Move a replica to another node."""
        nodes = set(self.membership.nodes)
        spare = sorted(set(self.hosts) - nodes)
        idle = sorted(nodes - {node_of(self.membership.primary)})
        if spare and idle:
            nodes = nodes - {self.rng.choice(idle)} | {self.rng.choice(spare)}
            self._put(
                Membership(
                    self.membership.lineage,
                    self.membership.term,
                    self.membership.primary,
                    self.membership.in_sync,
                    tuple(sorted(nodes)),
                )
            )

    # Hosts.

    def _any(self) -> Host:
        return self.rng.choice([*self.hosts.values()])

    def _victim(self) -> Host:
        """The primary's host more often than others."""
        return self.rng.choice([self._any(), self.hosts[node_of(self.membership.primary)]])

    def _append(self) -> None:
        host = self._victim()
        if host.runs and isinstance(host.role, Primary) and host.role.takes:
            for _ in range(self.rng.choice([1, 1, 2, 5])):
                self.values += 1
                self._act(host, lambda host: host.append(self.values))

    def _sync(self) -> None:
        self._act(self._any(), Host.sync)

    def _tell(self) -> None:
        name = self._any().name
        self._act(self._any(), lambda host: host.tell(name))

    def _late(self) -> None:
        name = self._any().name
        self._act(self._any(), lambda host: host.late(name))

    def _trim(self) -> None:
        if self.checks.seen:
            acked = self.rng.randint(self.checks.acked, max(self.checks.seen) + 1)
            self.checks.acked = acked
            self._act(self._any(), lambda host: host.trim(acked))

    def _crash(self) -> None:
        host = self._victim()
        if host.role is not None:
            host.crash()

    def _start(self) -> None:
        host = self._victim()
        if host.role is None:
            host.start()

    def _pause(self) -> None:
        host = self._victim()
        host.paused = host.role is not None

    def _wake(self) -> None:
        self._any().paused = False

    def _expire(self) -> None:
        host = self._victim()
        if host.paused or host.role is None or self.rng.random() < 0.3:
            host.session = False

    def _connect(self) -> None:
        host = self._any()
        if host.runs:
            host.session = True

    def _lose_disk(self) -> None:
        """Never the last of those in sync."""
        host = self._any()
        there = [c for c in self.membership.in_sync if self.hosts[node_of(c)].disk.id == c]
        if isinstance(host.role, Follower) and len(there) > 1 and len(self.membership.in_sync) > 1:
            host.lose_disk()
