"""A world: a cluster, its failures, and the order in which its parts act. All from one seed."""

from __future__ import annotations

from typing import Final

from tests.testkit.simulation.administrator import DISKS, SLOTS, Administrator
from tests.testkit.simulation.cluster import SOUND, Cluster, Parts
from tests.testkit.simulation.environment import Process
from tests.testkit.simulation.host import Host, Profile
from tests.testkit.simulation.master import MasterProcess
from tests.testkit.simulation.operator import Operator
from tests.testkit.simulation.rest import Rest
from tests.testkit.simulation.trouble import Trouble
from zkschema.records import COLLECT, INGEST

ROLES = ((INGEST, COLLECT), (INGEST, COLLECT), (INGEST,), (COLLECT,))
ZONES = ("a", "a", "b")
FLOWS = ("f", "f", "fg", "fg", "fgh")
NODES = (2, 2, 3, 3, 4, 4, 5, 6)
ROUGH_STEPS = (120, 260)


class World(Cluster):
    def __init__(self, seed: int, parts: Parts = SOUND) -> None:
        super().__init__(seed, parts)
        self.hosts: Final = {
            name: Host(self, name, self._profile(number))
            for number in range(self.random.choice(NODES))
            for name in (f"n{number}",)
        }
        operator = Administrator if self.varied else Operator
        self.operator: Final = operator(self, self.hosts, self.random.choice(FLOWS))
        self._trouble = Trouble(self, self.hosts, self.operator)
        for host in self.hosts.values():
            host.start()
        for name in self.masters:
            self.enter(MasterProcess(self, name))
        self.operator.apply_first()

    def run(self) -> None:
        """Rough times, then a calm in which everything must come to rest.

        It takes longer until a queue is filled and read.
        """
        until = self.random.randint(*ROUGH_STEPS) * (1 + self.queued)
        while self.story.step < until:
            self.step()
        Rest(self, self.hosts, self.operator).run()

    def step(self) -> None:
        if self.parts.watchdogs:
            self._end_hung()
        super().step()

    def _end_hung(self) -> None:
        """Watchdogs end hung masters and nodes; masters are started again at once."""
        for host in self.hosts.values():
            if host.node is not None and host.node.stuck:
                ended: Process = host.node
                host.kill_node()
                self._has_ended(ended)
        for process in list(self.processes):
            if isinstance(process, MasterProcess) and process.stuck:
                self.leave(process)
                self._has_ended(process)
                self.enter(MasterProcess(self, process.name))

    def _has_ended(self, process: Process) -> None:
        """In rough times the servers notice the end of its session late."""
        process.say("is ended by its watchdog")
        assert process.session is not None
        if not self.rough:
            process.session.close()

    def _go_wrong(self) -> None:
        self._trouble.happen()

    def _profile(self, number: int) -> Profile:
        roles = ROLES[0] if number == 0 else self.random.choice(ROLES)
        zone = self.random.choice(ZONES)
        if not self.varied:
            return Profile(roles, zone)
        labels = {"disk": self.random.choice(DISKS)} if self.random.random() < 0.7 else {}
        capacity = {"slots": self.random.choice(SLOTS)} if self.random.random() < 0.4 else {}
        return Profile(roles, zone, labels, capacity)
