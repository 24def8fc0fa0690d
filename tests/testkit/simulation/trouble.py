"""Failures of a rough world, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.testkit.simulation.bucket import Bucket
from tests.testkit.simulation.child import ChildProcess
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.host import Host
from tests.testkit.simulation.master import MasterProcess
from tests.testkit.simulation.node import NodeProcess
from tests.testkit.simulation.operator import Operator

PAUSE_SECONDS = 20.0
LONG_SECONDS = 15.0
MOST_EVENTS = 40
UNWATCHED = 0.5
"""Of hung masters: the watchdog cannot end them. At most one at a time, and never the only one."""


class Trouble:
    """Chooses faults by the world's random generator; one that does not apply now has no effect."""

    def __init__(self, world: Cluster, hosts: Mapping[str, Host], operator: Operator) -> None:
        self._world = world
        self._hosts = hosts
        self._operator = operator
        self._kinds: tuple[Callable[[], None], ...] = (
            *[self._command] * 4,
            *[self._cut] * 3,
            *[self._heal] * 6,
            *[self._expire] * 3,
            *[self._arrive] * 2,
            *[self._pause] * 2,
            *[self._lose] * 8,
            *[self._kill_child] * 2,
            *[self._kill_node] * 2,
            *[self._start_node] * 3,
            self._stop_node,
            *[self._kill_master] * 2,
            *[self._start_master] * 3,
            self._long,
            *[self._hang] * 2 * world.hanging,
            *[self._produce] * 6 * world.brokered,
            *[self._change_topic] * world.brokered,
            *[*[self._put] * 16, *[self._take_away] * 2, self._silence] * world.queued,
            *[self._decide] * 3 * world.queued,
            *[self._vanish, self._lose_host, *[self._command] * 12] * world.varied,
        )

    def happen(self) -> None:
        kind = self._world.random.choice(self._kinds)
        if self._world.processes or kind not in (self._cut, self._pause):
            kind()

    def _command(self) -> None:
        operator = self._operator
        if not operator.busy:
            operator.busy = True
            operator.step()
            operator.busy = False

    def _cut(self) -> None:
        process = self._world.random.choice(self._world.processes)
        if process.session is not None and process.session.connected:
            process.say("is cut off")
            process.session.cut()

    def _heal(self) -> None:
        cut = [p for p in self._world.processes if p.session and not p.session.connected]
        for process in cut[: self._world.random.randint(1, 2)]:
            assert process.session is not None
            process.say("is connected again")
            process.session.heal()
            process.wake()

    def _expire(self) -> None:
        """Only a session that is cut off, paused or gone can miss its heartbeat."""
        world = self._world
        living = {id(process.session): process for process in world.processes}
        late = []
        for session in world.sessions:
            process = living.get(id(session))
            silent = process is None or not session.connected or process.paused_until > world.now
            if silent and world.ensemble.is_open(session.session):
                late.append(session)
        if late:
            session = world.random.choice(late)
            world.story.tell(session.name, "loses its session")
            session.expire()
            if id(session) not in living:
                world.sessions.remove(session)

    def _arrive(self) -> None:
        for session in self._world.sessions:
            session.arrive()

    def _pause(self) -> None:
        process = self._world.random.choice(self._world.processes)
        if process.paused_until <= self._world.now:
            seconds = self._world.random.random() * PAUSE_SECONDS
            process.say(f"is frozen for {seconds:.1f} s")
            process.paused_until = self._world.now + seconds

    def _lose(self) -> None:
        """A node is frozen for so long that its session ends; its children notice nothing."""
        host = self._world.random.choice(list(self._hosts.values()))
        if (
            host.node is None
            or host.node.session is None
            or host.node.paused_until > self._world.now
        ):
            return
        seconds = PAUSE_SECONDS * (0.5 + self._world.random.random())
        host.node.say(f"is frozen for {seconds:.1f} s, and loses its session")
        host.node.paused_until = self._world.now + seconds
        host.node.session.expire()

    def _hang(self) -> None:
        """The loop of a master or of a node hangs for good; its session lives on."""
        living = [
            process
            for process in self._world.processes
            if isinstance(process, MasterProcess | NodeProcess)
            and not (process.busy or process.hangs)
        ]
        if not living:
            return
        process = self._world.random.choice(living)
        process.hangs = True
        process.say("hangs")
        if isinstance(process, MasterProcess) and len(self._world.masters) > 1:
            masters = (p for p in self._world.processes if isinstance(p, MasterProcess))
            others = any(master.unwatched for master in masters)
            process.unwatched = not others and self._world.random.random() < UNWATCHED

    def _kill_child(self) -> None:
        children = [
            process
            for process in self._world.processes
            if isinstance(process, ChildProcess) and not process.busy
        ]
        if children:
            self._world.random.choice(children).kill()

    def _kill_node(self) -> None:
        host = self._world.random.choice(list(self._hosts.values()))
        if host.node is not None and not host.node.busy:
            host.node.say("is killed")
            host.kill_node()

    def _vanish(self) -> None:
        """Half the nodes are gone at once."""
        hosts = list(self._hosts.values())
        for host in self._world.random.sample(hosts, (len(hosts) + 1) // 2):
            if host.node is not None and not host.node.busy:
                host.node.say("is killed, with others")
                host.kill_node()

    def _lose_host(self) -> None:
        """A host is gone for good; one at a time."""
        hosts = list(self._hosts.values())
        host = self._world.random.choice(hosts)
        if not host.busy and not any(other.lost for other in hosts):
            self._world.story.tell(host.name, "is gone for good")
            host.lose()

    def _stop_node(self) -> None:
        host = self._world.random.choice(list(self._hosts.values()))
        if host.node is not None:
            host.node.say("is to stop")
            host.node.node.stop()

    def _start_node(self) -> None:
        hosts = self._hosts.values()
        gone = [host for host in hosts if host.node is None and not host.lost]
        if gone:
            host = self._world.random.choice(gone)
            self._world.story.tell(host.name, "starts")
            host.start()

    def _kill_master(self) -> None:
        masters = [p for p in self._world.processes if isinstance(p, MasterProcess) and not p.busy]
        if masters:
            master = self._world.random.choice(masters)
            master.say("is killed")
            self._world.leave(master)

    def _start_master(self) -> None:
        there = {p.name for p in self._world.processes if isinstance(p, MasterProcess)}
        for name in self._world.masters:
            if name not in there:
                self._world.enter(MasterProcess(self._world, name))
                self._world.story.tell(name, "starts")

    def _produce(self) -> None:
        """Somebody writes into a topic."""
        random = self._world.random
        topic = self._world.disks.broker.topic(random.choice(self._operator.flows))
        topic[random.choice(sorted(topic))].end += random.randint(1, MOST_EVENTS)
        self._world.journals_grew()

    def _change_topic(self) -> None:
        """Add a partition to a topic, or recreate the topic.

        With decided batches only a partition is added: a batch of deleted partitions could never be
        finished, and this world has no operator who gives it up.
        """
        broker, flow = self._world.disks.broker, self._world.random.choice(self._operator.flows)
        if self._world.by_batch or self._world.random.random() < 0.7:
            self._world.story.tell("broker", f"has one more partition of {flow}")
            broker.add_partition(flow)
        else:
            self._world.story.tell("broker", f"makes the topic of {flow} anew")
            broker.make_anew(flow)

    def _put(self) -> None:
        self._tell_of_bucket(self._bucket.put())

    def _take_away(self) -> None:
        bucket = self._bucket
        remove = bucket.order == "any" and self._world.random.random() < 0.7
        self._tell_of_bucket(bucket.remove() if remove else bucket.heal())

    def _silence(self) -> None:
        self._tell_of_bucket(self._bucket.fall_silent())

    def _decide(self) -> None:
        self._operator.decide_once(self._world.random.choice(self._operator.flows))

    @property
    def _bucket(self) -> Bucket:
        return self._world.disks.bucket(self._world.random.choice(self._operator.flows))

    def _tell_of_bucket(self, what: str) -> None:
        if what:
            self._world.story.tell("bucket", what)

    def _long(self) -> None:
        """Nothing happens for a long time."""
        self._world.now += self._world.random.random() * LONG_SECONDS
