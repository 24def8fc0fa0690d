"""A world: a cluster, what goes wrong in it, and who acts when. All from one seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from flumeng.collector.acks import Acks
from flumeng.simulation.administrator import DISKS, SLOTS, Administrator
from flumeng.simulation.checks import Checks
from flumeng.simulation.collector import Collector
from flumeng.simulation.disk import JournalFile
from flumeng.simulation.ensemble import Ensemble
from flumeng.simulation.host import Host, Profile
from flumeng.simulation.master import MasterProcess, SteppedMaster
from flumeng.simulation.network import Answering, Rough
from flumeng.simulation.operator import Operator
from flumeng.simulation.process import Process
from flumeng.simulation.rest import Rest
from flumeng.simulation.session import Session
from flumeng.simulation.story import Story
from flumeng.simulation.trouble import Trouble
from flumeng.store import tree
from zkschema import paths
from zkschema.records import COLLECT, INGEST, MaintenanceLimits

ROLES = ((INGEST, COLLECT), (INGEST, COLLECT), (INGEST,), (COLLECT,))
ZONES = ("a", "a", "b")
ROUGH_STEPS = (120, 260)
STEP_SECONDS = 0.2
DELIVERS = 0.5
TROUBLES = 0.2
INTERRUPTED_STEPS = 16
INTERRUPTED_DEPTH = 3


@dataclass(frozen=True)
class Parts:
    """What a world is made of, so that a test may put something broken into it."""

    ensemble: type[Ensemble] = Ensemble
    acks: type[Acks] = Acks
    master: type[SteppedMaster] = SteppedMaster


class World:
    """``rough`` until ``calm_down``: from then on nothing is late, lost or killed any more.

    Every second world is ``varied``: nodes differ, hosts go for good, and the operator has commands
    for that.
    """

    def __init__(self, seed: int, parts: Parts = Parts()) -> None:
        self.random: Final = Random(seed)
        self.now = 0.0
        self.rough = True
        self.parts: Final = parts
        self.story: Final = Story(seed, self.clock)
        self.ensemble: Final = parts.ensemble()
        tree.init(Session(self.ensemble))
        self._network = Rough(self.random, self._meanwhile)
        self.answering: Final = Answering(self.random, self._meanwhile)
        self._depth = 0
        self.processes: list[Process] = []
        self.sessions: list[Session] = []
        self.varied: Final = seed % 2 == 1
        self.exactly_once = self.random.random() < 0.5
        self.greedy = self.random.random() < 0.5
        self._configure()
        self.checks: Final = Checks(self)
        operator = Administrator if self.varied else Operator
        self.operator: Final = operator(self, tuple("fgh"[: self.random.choice((1, 1, 2, 2, 3))]))
        self.trouble: Final = Trouble(self)
        self.masters: Final = [f"m{number}" for number in range(self.random.choice((1, 2, 2, 3)))]
        nodes = self.random.choice((2, 2, 3, 3, 4, 4, 5, 6))
        self.hosts: Final = {
            name: Host(self, name, self._profile(number))
            for number in range(nodes)
            for name in (f"n{number}",)
        }
        self.drainable: Final = sorted(self.hosts)[1:]
        self._enter_all()

    def run(self) -> None:
        """Rough times, then a calm in which everything must come to rest as it should."""
        until = self.random.randint(*ROUGH_STEPS)
        while self.story.step < until:
            self.step()
        Rest(self).run()

    def clock(self) -> float:
        return self.now

    def connect(self, name: str) -> Session:
        session = Session(self.ensemble, self._network, name)
        self.sessions.append(session)
        return session

    def enter(self, process: Process) -> None:
        self.processes.append(process)

    def leave(self, process: Process) -> None:
        self.processes.remove(process)
        process.end()

    def journal(self, name: str) -> JournalFile | None:
        """The journal, when its node serves it now."""
        for host in self.hosts.values():
            if name in host.journals.files:
                return host.journals.files[name] if host.serves else None
        return None

    def file(self, journal: str) -> JournalFile | None:
        """The journal as it is on disk, served or not."""
        return next((file for name, file in self.files() if name == journal), None)

    def files(self) -> Iterator[tuple[str, JournalFile]]:
        for host in self.hosts.values():
            yield from host.journals.files.items()

    @property
    def anyone_ready(self) -> bool:
        """Whether anyone wants to run now."""
        return bool(self._ready)

    @property
    def _ready(self) -> list[Process]:
        return [process for process in self.processes if process.may_run and process.ready]

    def journals_grew(self) -> None:
        for process in self.processes:
            if isinstance(process, Collector):
                process.wake()

    def step(self) -> None:
        """Something happens: trouble, or one step of one process."""
        self.story.step += 1
        self.now += self.random.random() * STEP_SECONDS
        if self.rough:
            if self.processes and self.random.random() < DELIVERS:
                self.random.choice(self.processes).hear()
            if self.random.random() < TROUBLES:
                self.trouble.happen()
                return
        ready = self._ready
        if not ready:
            self._wait()
            return
        process = self.random.choice(ready)
        process.busy = True
        process.step()
        process.busy = False

    def calm_down(self) -> None:
        self.story.tell("world", "calms down")
        self.rough = False
        self._network.calm_down()
        self.answering.calm_down()
        for session in self.sessions:
            session.see(self.ensemble.zxid)

    def _wait(self) -> None:
        """Until someone wants to run."""
        times = [max(p.due, p.paused_until) for p in self.processes if not p.busy]
        later = min((time for time in times if time > self.now), default=self.now)
        self.now = min(later, self.now + 30.0)

    def sleep(self, seconds: float) -> None:
        """A process waits in the middle of a step."""
        self.now += seconds
        self._meanwhile()

    def _meanwhile(self) -> None:
        """A request takes long: others act before it gets to a server."""
        if self._depth < INTERRUPTED_DEPTH:
            self._depth += 1
            for _ in range(self.random.randint(1, INTERRUPTED_STEPS)):
                self.step()
            self._depth -= 1

    def _configure(self) -> None:
        session = Session(self.ensemble)
        found = session.read(paths.cluster())
        assert found is not None
        settings = replace(
            found.value,
            grace_seconds=self.random.choice((0.0, 0.0, 3.0)),
            drain_limit_seconds=self.random.choice((5.0, 20.0, 60.0)),
            maintenance_limits=self._limits(),
        )
        session.write(paths.cluster(), settings, found.version)
        session.close()

    def _profile(self, number: int) -> Profile:
        roles = ROLES[0] if number == 0 else self.random.choice(ROLES)
        zone = self.random.choice(ZONES)
        if not self.varied:
            return Profile(roles, zone)
        labels = {"disk": self.random.choice(DISKS)} if self.random.random() < 0.7 else {}
        capacity = {"slots": self.random.choice(SLOTS)} if self.random.random() < 0.4 else {}
        return Profile(roles, zone, labels, capacity)

    def _limits(self) -> MaintenanceLimits:
        if not self.varied:
            return MaintenanceLimits()
        return MaintenanceLimits(nodes=self.random.choice((2, 2, 5)), enter=0.4, leave=0.25)

    def _enter_all(self) -> None:
        for host in self.hosts.values():
            host.start()
        for name in self.masters:
            self.enter(MasterProcess(self, name))
        self.operator.apply_first()
