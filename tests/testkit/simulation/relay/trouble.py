"""Failures of a rough relay, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.testkit.simulation.relay.gateway import Gateway
from tests.testkit.simulation.relay.source import SourceMaster
from tests.testkit.simulation.relay.subscriber import Worker
from tests.testkit.simulation.session import Session
from zkschema import paths
from zkschema.records import COLLECT, DISCOVER

if TYPE_CHECKING:
    from tests.testkit.simulation.relay.world import World

PAUSE_SECONDS = 20.0
LONG_SECONDS = 60.0
MOST_OPEN = 3


class Trouble:
    """Chooses faults by the world's random generator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._gone: list[Gateway] = []
        random = world.random
        self._kinds: tuple[Callable[[], None], ...] = (
            *[self._cut] * 3,
            *[self._heal] * 6,
            *[self._expire] * 2,
            *[self._arrive] * 2,
            *[self._pause] * 2,
            *[self._cut_link] * random.choice((0, 1, 3)),
            *[self._one_way] * random.choice((0, 1, 2)),
            *[self._heal_link] * 4,
            *[self._repeat] * random.choice((0, 2, 8)),
            *[self._kill_gateway] * 2,
            *[self._start_gateway] * 3,
            *[self._stop_node, self._start_node, self._start_node],
            *[self._rotate] * random.choice((0, 1, 3)),
            *[self._take_over] * random.choice((0, 1, 3)),
            *[self._crash] * random.choice((0, 1, 4)),
            *[self._long] * random.choice((0, 2, 8)),
            *[self._stick] * random.choice((0, 1)),
        )

    def happen(self) -> None:
        self._world.random.choice(self._kinds)()

    def heal_all(self) -> None:
        """End all faults that last."""
        self._world.own.stuck = False
        while self._gone:
            self._start_gateway()
        self._start_node()
        for process in self._world.processes:
            process.paused_until = 0.0
            session = process.session
            if session is not None and not self._works(session):
                session.heal()
                process.wake()

    def _works(self, session: Session) -> bool:
        return session.connected and session.ensemble.is_open(session.session)

    def _cut(self) -> None:
        process = self._world.random.choice(self._world.processes)
        if process.session is not None and process.session.connected:
            process.say("is cut off from ZooKeeper")
            process.session.cut()

    def _heal(self) -> None:
        for process in self._world.processes:
            if process.session is not None and not process.session.connected:
                if process is self._world.node and self._world.node.is_down:
                    continue
                process.say("is connected again")
                process.session.heal()
                process.wake()
                return

    def _expire(self) -> None:
        process = self._world.random.choice(self._world.processes)
        session = process.session
        if session is not None and (process.paused or not session.connected):
            process.say("loses its session")
            session.expire()

    def _arrive(self) -> None:
        for session in self._world.sessions:
            session.arrive()

    def _pause(self) -> None:
        process = self._world.random.choice(self._world.processes)
        if not process.paused:
            seconds = self._world.random.random() * PAUSE_SECONDS
            process.say(f"is frozen for {seconds:.1f} s")
            process.paused_until = self._world.now + seconds

    def _cut_link(self) -> None:
        self._world.story.tell("link", "is cut")
        self._world.link.cut = True

    def _one_way(self) -> None:
        self._world.story.tell("link", "loses all answers")
        self._world.link.one_way = True

    def _heal_link(self) -> None:
        self._world.link.cut = self._world.link.one_way = False

    def _repeat(self) -> None:
        what = self._world.link.repeat()
        if what:
            self._world.story.tell("link", what)

    def _kill_gateway(self) -> None:
        gateway = self._world.random.choice(self._world.gateways)
        if gateway in self._world.processes and not gateway.busy:
            gateway.say("is killed")
            self._world.leave(gateway)
            self._gone.append(gateway)

    def _start_gateway(self) -> None:
        if self._gone:
            gateway = self._gone.pop()
            gateway.start()
            self._world.enter(gateway)
            gateway.say("starts")

    def _stop_node(self) -> None:
        """Not between the removal of a journal and that of its record, which it would forget."""
        forgets = any(
            journal.removed and self._world.fra.newest(str(paths.journal(name)))
            for name, journal in self._world.journals.items()
        )
        if not (forgets or self._world.node.is_down or self._world.node.busy):
            self._world.node.say("is killed")
            self._world.node.stop()

    def _start_node(self) -> None:
        if self._world.node.is_down:
            self._world.node.start()
            self._world.node.say("starts")

    def _rotate(self) -> None:
        """A journal is closed, and another one is begun."""
        if self._world.node.is_down:
            return
        journal = self._world.random.choice(self._world.open_journals())
        self._world.story.tell("n1", f"closes {journal.name} at {journal.safe}")
        journal.close()
        self._world.make_journal()

    def _take_over(self) -> None:
        kind = self._world.random.choice((COLLECT, DISCOVER))
        self._world.story.tell("m2", self._world.plans.give(kind))

    def _crash(self) -> None:
        """A collector, a discovery process or the master is killed, and starts again."""
        kinds = (Worker, SourceMaster)
        living = [p for p in self._world.processes if isinstance(p, kinds) and not p.busy]
        if living:
            process = self._world.random.choice(living)
            process.say("is killed, and starts again")
            self._world.crash(process)

    def _long(self) -> None:
        """Nothing happens for a long time."""
        self._world.now += self._world.random.random() * LONG_SECONDS

    def _stick(self) -> None:
        self._world.own.stuck = not self._world.own.stuck
