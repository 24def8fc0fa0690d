"""An operator of a world: flows come, change and go, tasks are moved, nodes drained and taken back.

Some revisions are broken: every collect task that runs one fails. They are rolled out behind a
canary, and only over a revision that has been planned, so that there is one to go back to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from flumeng.control.commands import operator as commands
from flumeng.control.commands.flows import apply_flow, delete_flow, set_flow_state
from flumeng.control.commands.nodes import set_node_desired
from flumeng.control.commands.queues import Decision, decide
from flumeng.control.commands.tasks import move_task, restart_task
from flumeng.control.zookeeper.transaction import TooLargeError
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.simulation.canary import BROKEN
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.environment import Process
from tests.testkit.simulation.host import Host
from tests.testkit.simulation.session import Session
from zkschema import paths
from zkschema.records import COLLECT

MOST_TASKS = 3
TEXT = """flow: {name}
sources: [{sources}]
{place}
sinks: [{sink}]
"""
SYSLOG = '{syslog: {listen: "127.0.0.1:5514"}}'
OBJECTS = (
    '{{objects: {{paths: ["/in/{name}/*"], shared: true, order: {order}, after: {after}, '
    "lanes: {lanes}, settle_seconds: {settle}, discovery_seconds: 1}}}}"
)
DECISIONS: tuple[Decision, ...] = ("retry", "retry", "skip")
KAFKA = '{kafka: {brokers: ["127.0.0.1:9092"], topics: [t]}}'
SINK = "noop: {}"
BY_BATCH = 'http: {url: "http://127.0.0.1/", idempotent: true}'
PLACE = "place: {{collect: {{tasks: {tasks}, spread: {spread}, replicas: {replicas}}}}}"
ROLLOUT = "rollout: {{canary: 1, max_parallel: {parallel}, settle_seconds: {settle}}}\n"
VERBS = (
    *["apply"] * 3,
    *["resume"] * 2,
    *["move"] * 2,
    "restart",
    "pause",
    "stop",
    "delete",
    "drain",
    "undrain",
)
NOW = 0.0


class Operator(Process):
    """``flows`` are the names that it uses, again and again. It is always connected."""

    def __init__(self, world: Cluster, hosts: Mapping[str, Host], flows: Sequence[str]) -> None:
        super().__init__(world, "operator")
        self.world = world
        self.hosts = hosts
        self.store = self.session = Session(world.ensemble, world.answering, self.name)
        self.flows = flows

    @property
    def ready(self) -> bool:
        return False

    def signed(self, reason: str = "") -> commands.Operator:
        assert self.session is not None
        return commands.Operator(self.session, "o", reason, NOW)

    def apply_first(self) -> None:
        for name in self.flows:
            self._do(partial(self.apply, name), f"applies {name}")

    def step(self) -> None:
        """Run one random command; it may fail."""
        random = self.world.random
        flow = random.choice(self.flows)
        node = random.choice(sorted(self.hosts)[1:])
        verb = random.choice(VERBS)
        if verb == "move":
            task, target = self._some_task(flow), random.choice(sorted(self.hosts))
            self._do(lambda: self.move(task, target), f"moves {task} to {target}")
        elif verb == "restart":
            task = self._some_task(flow)
            self._do(lambda: self.restart(task), f"restarts {task}")
        elif verb == "apply":
            self._do(lambda: self.apply(flow), f"applies {flow}")
        elif verb == "delete":
            discard = random.random() < 0.3
            self._do(lambda: self.delete(flow, discard=discard), f"deletes {flow} {discard=}")
        elif verb in ("drain", "undrain"):
            desired = "draining" if verb == "drain" else "active"
            self._do(lambda: self.desire(node, desired), f"wants {node} {desired}")
        else:
            state = {"pause": "suspended", "resume": "running", "stop": "stopped"}[verb]
            self._do(lambda: self.set_state(flow, state), f"wants {flow} {state}")

    def apply(self, flow: str) -> None:
        assert self.session is not None
        random = self.world.random
        sink = BY_BATCH if self.world.by_batch else SINK
        text = TEXT.format(
            name=flow, sources=self.sources(flow), place=self.place(), sink=f"{{{sink}}}"
        )
        if self.world.by_batch:
            text += "delivery: exactly-once\n"
        before = None
        if random.random() < 0.5:
            text += self.rollout()
            if random.random() < 0.5 and (before := self._planned_revision(flow)):
                text += BROKEN
        apply_flow(self.signed(), text, expect_revision=before)

    def sources(self, flow: str) -> str:
        """The sources of a flow file."""
        if self.world.queued:
            objects = self._objects(flow)
            return self.world.random.choice((SYSLOG, objects, objects, f"{SYSLOG}, {objects}"))
        if not self.world.brokered:
            return SYSLOG
        return self.world.random.choice((SYSLOG, KAFKA, KAFKA, f"{SYSLOG}, {KAFKA}"))

    def _objects(self, flow: str) -> str:
        bucket, random = self.world.disks.bucket(flow), self.world.random
        return OBJECTS.format(
            name=flow,
            order=bucket.order,
            after=bucket.after,
            lanes=random.randint(1, 3),
            settle=random.choice((0, 2)),
        )

    def decide_once(self, flow: str) -> None:
        """Decide about the failed items of the flow."""
        wanted = self.world.random.choice(DECISIONS)
        command = partial(decide, self.signed(), flow, (), wanted)
        self._do(command, f"{wanted} what failed of {flow}")

    def place(self) -> str:
        """The place of a flow file."""
        random = self.world.random
        tasks, spread = random.randint(1, MOST_TASKS), random.choice(("load", "zone"))
        return PLACE.format(tasks=tasks, spread=spread, replicas=self.replicas())

    def replicas(self) -> int:
        """Half of all worlds have standbys, in some of their revisions."""
        return self.world.random.randint(1, 3) if self.world.replicated else 1

    def rollout(self) -> str:
        """The rollout of a flow file."""
        random = self.world.random
        return ROLLOUT.format(parallel=random.randint(1, 2), settle=random.choice((0, 3)))

    def set_state(self, flow: str, state: str) -> None:
        set_flow_state(self.signed(), flow, state)

    def delete(self, flow: str, *, discard: bool) -> None:
        delete_flow(self.signed(), flow, discard=discard)

    def desire(self, node: str, desired: str) -> None:
        set_node_desired(self.signed(), node, desired)

    def move(self, task: str, node: str) -> None:
        move_task(self.signed(), task, node)

    def restart(self, task: str) -> None:
        restart_task(self.signed(), task)

    def _some_task(self, flow: str) -> str:
        return f"{flow}/{COLLECT}.{self.world.random.randrange(MOST_TASKS)}"

    def _planned_revision(self, flow: str) -> int | None:
        """The flow's current revision, when its tasks have run one."""
        assert self.session is not None
        record, plan = self.session.read(paths.flow(flow)), self.session.read(paths.plan(flow))
        return record.value.revision if record and plan and plan.value.revision else None

    def _do(self, command: Callable[[], object], what: str) -> None:
        try:
            command()
        except TooLargeError as error:  # flows are small: something else has grown
            raise self.world.story.violation(f"{what}: {error}") from error
        except (ConflictError, UserError, UnavailableError) as error:
            self.say(f"{what}: {type(error).__name__}: {error}")
        else:
            self.say(what)
