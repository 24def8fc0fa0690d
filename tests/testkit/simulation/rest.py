"""The end of a world: nothing goes wrong any more, and all must come to rest as it should.

Every flow that is to run is collected to the end of its journals and its rollout is over, deleted
flows are gone, drained nodes are empty, and planning again gives nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.config import parse_flow
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.control.commands.nodes import left
from flumeng.control.commands.unfinished_writes import decided_batches
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot import queues
from flumeng.control.snapshot.reader import Reader
from flumeng.control.zookeeper import Store
from tests.testkit.simulation.administrator import Administrator
from tests.testkit.simulation.bucket import identity
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.host import Host
from tests.testkit.simulation.master import MasterProcess
from tests.testkit.simulation.operator import Operator
from tests.testkit.simulation.session import Session
from tests.testkit.simulation.waiting import Waiting
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

MOST_SECONDS = 900.0
MOST_STEPS = 6000


class Rest:
    def __init__(self, world: Cluster, hosts: Mapping[str, Host], operator: Operator) -> None:
        self._world = world
        self._hosts = hosts
        self._operator = operator
        self._store: Store = Session(world.ensemble)

    def run(self) -> None:
        """Raises ViolationError when the world is not at rest within the bound."""
        world = self._world
        self._repair()
        until, last = world.now + MOST_SECONDS, world.story.step + MOST_STEPS
        missing = "nobody was ever idle"
        while world.anyone_ready or (missing := self._missing()):
            if world.now > until or world.story.step > last:
                raise world.story.violation(f"does not come to rest: {missing}")
            self._start_nodes()
            world.step()

    def _repair(self) -> None:
        """End all faults: restart absent processes, reconnect sessions that are cut off."""
        world = self._world
        world.calm_down()
        living = {id(process.session) for process in world.processes}
        for session in [s for s in world.sessions if id(s) not in living]:
            session.close()
        for process in list(world.processes):
            process.paused_until = 0.0
            process.due = min(process.due, world.now)
            if process.session is not None:
                process.session.heal()
        if isinstance(self._operator, Administrator):
            self._operator.settle()
        for flow in self._operator.flows if world.queued else ():
            self._operator.decide_once(flow)
        masters = {process.name for process in world.processes}
        for name in world.masters:
            if name not in masters:
                world.enter(MasterProcess(world, name))

    def _start_nodes(self) -> None:
        for host in self._hosts.values():
            if host.lost and isinstance(self._operator, Administrator):
                self._operator.replace(host)
            if host.node is None:
                host.start()

    def _missing(self) -> str:
        """The reason why the world is not at rest yet."""
        if isinstance(self._operator, Administrator):
            self._operator.give_up_batches()
        waiting = Waiting(self._reader("nobody").snapshot())
        return (
            waiting.missing
            or self._unfinished_flow(waiting)
            or self._unacked(waiting)
            or self._undiscovered(waiting)
            or self._undrained(waiting)
            or self._maintained()
            or self._unplanned(waiting)
        )

    def _maintained(self) -> str:
        cluster = self._store.read(paths.cluster())
        assert cluster is not None
        mode = cluster.value.maintenance
        return f"maintenance mode is still on: {mode.why}" if mode else ""

    def _unfinished_flow(self, waiting: Waiting) -> str:
        for name in self._store.children(paths.flows()):
            flow = self._store.read(paths.flow(name))
            assert flow is not None
            if flow.value.state == "deleted" and not waiting.has(name):
                return f"{name} is deleted and still there"
            if flow.value.state != "running" or waiting.has(name):
                continue
            if self._store.children(paths.commits(name)):
                return f"{name} has commits that nobody finishes"
            if decided_batches(self._store, name):
                return f"{name} has a batch that nobody finishes"
            plan = self._store.read(paths.plan(name))
            if plan is not None and plan.value.revision != flow.value.revision:
                return f"{name} is at revision {plan.value.revision} of {flow.value.revision}"
        return ""

    def _unacked(self, waiting: Waiting) -> str:
        for name, file in self._world.disks.files():
            flow = self._store.read(paths.flow(file.flow))
            if flow is None:
                return f"{name} is on disk, and its flow is gone"
            if flow.value.state == "suspended":
                continue
            ack = self._store.read(paths.ack(file.flow, CURSOR_MAIN, name))
            acked = ack.value.offset if ack else 0
            if acked < file.end and name in waiting.journals:
                continue
            if acked < file.end:
                return f"{name} is acked up to {acked} of {file.end}"
            if file.closed:
                return f"{name} is closed and acked, and still on disk"
        return ""

    def _undiscovered(self, waiting: Waiting) -> str:
        """Kafka is read to its end, and no unwanted partition is registered."""
        for name in self._store.children(paths.flows()):
            flow = self._store.read(paths.flow(name))
            assert flow is not None
            if flow.value.state != "running" or waiting.has(name):
                continue
            text = self._store.read(paths.revision(name, str(flow.value.revision)))
            assert text is not None
            wanted = parse_flow(text.value.text).partitioned
            found = self._store.read(paths.partitions(name))
            known = found.value.partitions if found else {}
            if any(isinstance(part.options, ObjectsSource) for part in wanted):
                if unread := self._unread_objects(name, known):
                    return unread
                continue
            topic = self._world.disks.broker.topic(name) if wanted else {}
            if known.keys() != topic.keys():
                return f"{name} has {sorted(known)} registered, and Kafka {sorted(topic)}"
            for partition, file in topic.items():
                ack = self._store.read(paths.ack(name, CURSOR_MAIN, partition))
                if (ack.value.offset if ack else 0) < file.end:
                    return f"{partition} is not acked up to {file.end}"
        return ""

    def _unread_objects(self, flow: str, known: Mapping[str, object]) -> str:
        """All present objects are items, and all items are acked and removed."""
        head = queues.head(self._store, flow)
        if head is None:
            return f"{flow} reads objects and has no queue"
        lanes = {queues.lane_partition(lane, head.value.id) for lane in head.value.next}
        if known.keys() != lanes:
            return f"{flow} has {sorted(known)} registered, and its queue {sorted(lanes)}"
        objects = self._world.disks.bucket(flow).objects.values()
        there = [identity(one.listed) for one in objects]
        return self._world.checks.queues.unfinished(flow, head.value.id, there)

    def _undrained(self, waiting: Waiting) -> str:
        for name in self._store.children(paths.nodes()):
            node = self._store.read(paths.node(name))
            assert node is not None
            if node.value.desired == "draining":
                remains = left(self._store, name)
                if not waiting.tasks.issuperset(remains.tasks):
                    return f"{name} is drained and has {remains.lines}"
        return ""

    def _reader(self, master: str) -> Reader:
        return Reader(self._store, master, self._world.clock, self._world.clock)

    def _unplanned(self, waiting: Waiting) -> str:
        for master in self._store.children(paths.live_masters()):
            planner = Planner()
            actions = planner.plan(self._reader(master).snapshot())
            if actions:
                return f"{master} finds something to do: {actions[0].why}"
            held = [flow for flow in planner.held if not waiting.has(flow)]
            if held:
                return f"{master} holds tasks of {held}"
        return ""
