"""The source's other processes: senders, the node with the journals, the flow's own collector, and
a master that ends leases. All but senders and collector use the code of the real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flumeng.agent.node.fenced_store import FencedStore
from flumeng.control.master.removals import Removals
from flumeng.control.planner.actions import Release
from flumeng.control.snapshot.leases import ServerClock
from flumeng.control.zookeeper import ABSENT, ANY, Put
from flumeng.platform.errors import FlumengError
from tests.testkit.simulation.environment import Process
from tests.testkit.simulation.relay.journal import ModelJournal
from zkschema import paths
from zkschema.records import Ack, LiveMaster

if TYPE_CHECKING:
    from tests.testkit.simulation.relay.world import World

FLOW = "web"
SEND_SECONDS = 0.4
NODE_SECONDS = 0.7
COLLECT_SECONDS = 0.6
MASTER_SECONDS = 4.0
MOST_EVENTS = 4
REREAD = 0.1


class Sender(Process):
    """Sends while there is room; ``enough`` ends that."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "sender")
        self._world = world
        self.enough = False

    def step(self) -> None:
        self.due = self._world.now + SEND_SECONDS
        if self.enough or self._world.node.is_down:
            return
        journal = self._world.random.choice(self._world.open_journals())
        if not journal.append(self._world.random.randint(1, MOST_EVENTS), self._world.now):
            self.say(f"{journal.name} is full")


class SourceNode(Process):
    """Registers journals, and trims and removes them by acks. Its disk survives it."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "n1")
        self._world = world
        self.is_down = False
        self.start()

    def start(self) -> None:
        self.is_down = False
        self.session = self._world.connect_to(self._world.fra, self.name)
        self._registry = self._world.parts.registry(
            FencedStore(self.session), self.name, self._world.clock
        )

    def stop(self) -> None:
        self.is_down = True
        assert self.session is not None
        self.session.vanish()

    @property
    def may_run(self) -> bool:
        return super().may_run and not self.is_down

    def step(self) -> None:
        self.due = self._world.now + NODE_SECONDS
        try:
            self._work()
        except FlumengError as error:
            self.say(f"looks again: {error}")
            self._registry.reread()

    def _work(self) -> None:
        world = self._world
        if world.random.random() < REREAD:
            self._registry.reread()
        there = {name: at for name, at in world.journals.items() if not at.removed}
        self._registry.enter(
            {
                name: {
                    "flow": FLOW,
                    "term": 1,
                    "closed": at.closed,
                    "end": at.safe if at.closed else None,
                }
                for name, at in there.items()
            }
        )
        assert self.session is not None
        seen = self.session.zxid
        acked = self._registry.acks()
        for name, ack in acked.acks.items():
            if name in there:
                world.checks.on_trim(there[name], ack, seen)
                there[name].trim(ack)
        self._registry.clear_up(acked.unneeded, there)
        for name in acked.unneeded:
            if name in there and there[name].closed:
                world.checks.on_removed(there[name], seen)
                there[name].removed = True
                self.say(f"removes {name}")


class OwnCollector(Process):
    """Acks what the flow's own sinks have; ``stuck`` while these fail."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "own")
        self._world = world
        self.session = world.connect_to(world.fra, self.name)
        self.stuck = False

    def step(self) -> None:
        self.due = self._world.now + COLLECT_SECONDS
        if self.stuck:
            return
        for name, journal in list(self._world.journals.items()):
            if not journal.removed:
                try:
                    self._collect(name, journal)
                except FlumengError as error:
                    self.say(f"collects again: {error}")

    def _collect(self, name: str, journal: ModelJournal) -> None:
        assert self.session is not None
        if not self.session.exists(paths.journal(name)):
            return
        path = paths.ack(FLOW, "main", name)
        ack = self.session.read(path)
        at = ack.value.offset if ack else 0
        if at < journal.safe:
            rough = self._world.rough and self._world.random.random() < 0.5
            to = self._world.random.randint(at + 1, journal.safe) if rough else journal.safe
            expect = ack.version if ack else ABSENT
            self.session.commit([Put(path, Ack(epoch=1, offset=to), expect)])


class SourceMaster(Process):
    """Removes cursors whose lease has expired, by the clock of the servers."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "m1")
        self._world = world
        self.session = world.connect_to(world.fra, self.name)
        self._live = LiveMaster(host="m1", pid=1, version="0", since=0.0)
        self._clock = ServerClock(world.clock)
        self._leases = world.parts.expiry(self.session, world.clock)
        self._removals = Removals(self.session)

    def fresh(self) -> SourceMaster:
        """Return the process as it starts again."""
        return SourceMaster(self._world)

    def step(self) -> None:
        self.due = self._world.now + MASTER_SECONDS
        try:
            self._work()
        except FlumengError as error:
            self.say(f"ends leases later: {error}")

    def _work(self) -> None:
        assert self.session is not None
        path = paths.live_master(self.name)
        self.session.write(path, self._live, ANY)
        own = self.session.read(path)
        if own is None:
            return
        self._removals.next_tick()
        for lease in self._leases.expired(self._clock.now(own.written)):
            release = Release(lease.flow, lease.cursor, lease.version, ())
            self.say(f"ends the lease {lease.cursor}")
            self._removals.carry_out(release)
