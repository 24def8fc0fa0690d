"""Processes that take turns in simulated time: one step at a time, all chance from one seed."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.testkit.simulation.ensemble import Ensemble
from tests.testkit.simulation.network import Answering, Fragile, Rough
from tests.testkit.simulation.session import Session
from tests.testkit.simulation.story import Story

STEP_SECONDS = 0.2
DELIVERS = 0.5
TROUBLES = 0.2
INTERRUPTED_STEPS = 16
INTERRUPTED_DEPTH = 3


class Environment:
    """``rough`` until ``calm_down``: from then on nothing is late, lost or killed any more."""

    def __init__(self, seed: int, ensemble: Ensemble) -> None:
        self.random: Final = Random(seed)
        self.now = 0.0
        self.rough = True
        self.story: Final = Story(seed, self.clock)
        self.ensemble: Final = ensemble
        self._depth = 0
        self._network = Rough(self.random, self._meanwhile)
        self.answering: Final = Answering(self.random, self._meanwhile)
        self.processes: list[Process] = []
        self.sessions: list[Session] = []

    def clock(self) -> float:
        return self.now

    def connect(self, name: str, *, fragile: bool = False) -> Session:
        network = Fragile(self._network, self.random) if fragile else self._network
        session = Session(self.ensemble, network, name)
        self.sessions.append(session)
        return session

    def enter(self, process: Process) -> None:
        self.processes.append(process)

    def leave(self, process: Process) -> None:
        self.processes.remove(process)
        process.end()

    @property
    def anyone_ready(self) -> bool:
        """Whether any process wants to run now."""
        return bool(self._ready)

    def step(self) -> None:
        """One step of the world: a fault, or one step of one process."""
        self.story.step += 1
        self.now += self.random.random() * STEP_SECONDS
        if self.rough:
            if self.processes and self.random.random() < DELIVERS:
                self.random.choice(self.processes).hear()
            if self.random.random() < TROUBLES:
                self._go_wrong()
                return
        ready = self._ready
        if not ready:
            self._wait()
            return
        process = self.random.choice(ready)
        process.busy = True
        process.step()
        process.busy = False

    def sleep(self, seconds: float) -> None:
        """A process waits in the middle of a step."""
        self.now += seconds
        self._meanwhile()

    def calm_down(self) -> None:
        self.story.tell("world", "calms down")
        self.rough = False
        self._network.calm_down()
        self.answering.calm_down()
        for session in self.sessions:
            session.see(session.ensemble.zxid)

    def _go_wrong(self) -> None:
        """One thing goes wrong."""
        raise NotImplementedError

    @property
    def _ready(self) -> list[Process]:
        return [process for process in self.processes if process.may_run and process.ready]

    def _wait(self) -> None:
        """Advance the clock until a process wants to run."""
        times = [max(p.due, p.paused_until) for p in self.processes if not p.busy]
        later = min((time for time in times if time > self.now), default=self.now)
        self.now = min(later, self.now + 30.0)

    def _meanwhile(self) -> None:
        """A request takes long: others act before it gets to a server."""
        if self._depth < INTERRUPTED_DEPTH:
            self._depth += 1
            for _ in range(self.random.randint(1, INTERRUPTED_STEPS)):
                self.step()
            self._depth -= 1


class Process:
    """``due``: the time of its next step; ``paused_until``: it does not run before that.

    ``hangs``: its loop makes no more turns, while its session and its watches live on. ``busy``
    while one of its steps is under way: others may act in between, but it does not begin another.
    ``session`` is its session in ZooKeeper, if it has one.
    """

    def __init__(self, world: Environment, name: str) -> None:
        self.name = name
        self.due = world.now
        self.paused_until = 0.0
        self.hangs = False
        self.busy = False
        self.session: Session | None = None
        self._environment = world

    @property
    def ready(self) -> bool:
        return self.due <= self._environment.now

    @property
    def paused(self) -> bool:
        return self.paused_until > self._environment.now

    @property
    def may_run(self) -> bool:
        return not (self.busy or self.paused or self.hangs)

    def step(self) -> None:
        """Do the next step, and set ``due`` for another."""
        raise NotImplementedError

    def wake(self) -> None:
        """The connection is back, or there may be news."""
        self.due = min(self.due, self._environment.now)

    def journals_grew(self) -> None:
        """There may be more events to read."""

    def hear(self) -> None:
        """Its server applies more of the log, and its watches fire."""
        if self.session is not None:
            newest = self.session.ensemble.zxid
            self.session.see(self._environment.random.randint(self.session.zxid, newest))

    def end(self) -> None:
        """It is gone, killed or not; called once."""
        if self.session is not None:
            self.session.vanish()

    def say(self, what: str) -> None:
        self._environment.story.tell(self.name, what)
