"""A node over a scripted ingest worker, and the cluster that it is in."""

from __future__ import annotations

from pathlib import Path

from flumeng.agent.node.daemon import LOOK_SECONDS
from flumeng.agent.node.data_directory import DataDirectory
from flumeng.agent.node.events import Event, Reported
from flumeng.agent.node.protocol import Message
from flumeng.agent.node.settings import Settings
from flumeng.config.policy import Policy
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY, tree
from tests.testkit.light_nodes import ScriptedChild
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.simulation.stepped_node import SteppedNode
from tests.testkit.store import FakeTree
from zkschema import paths
from zkschema.records import INGEST, AssignedTask, Assignment, NodeStatus

TEXT = "{{flow: {}, sources: [syslog: {{listen: '127.0.0.1:0'}}], sinks: [noop]}}"


def task(flow: str, epoch: int = 1, revision: int = 1) -> AssignedTask:
    return AssignedTask(
        flow=flow, task="ingest.n1", kind=INGEST, epoch=epoch, revision=revision, state="running"
    )


class Bench:
    """A node over a scripted ingest worker, and the cluster that it is in."""

    def __init__(self, data: Path, cluster: FakeTree | None = None) -> None:
        self.now = 100.0
        self.store = ScriptedStore(cluster)
        self.told: list[Message] = []
        self.data = data
        if cluster is None:
            tree.init(self.store)
        self.home = DataDirectory(data)
        self.signers: tuple[str, ...] = ()
        self.start()

    def start(self) -> None:
        """A new process on the same data directory."""
        settings = Settings("n1", self.data, "", roles=(INGEST,))
        self.home.close()
        self.home = DataDirectory(self.data)
        self.node = SteppedNode(
            settings,
            self.home,
            self.store,
            lambda: self.now,
            self.child,
            allowed=Policy(signers=self.signers),
        )
        self.node.begin()
        self.node.turn()

    def child(self, name: str) -> ScriptedChild:
        def hear(event: Event) -> None:
            self.node.hear(event)

        told = self.told

        class Child(ScriptedChild):
            closed_end = 5

            def tell(self, message: Message) -> None:
                told.append(message)
                super().tell(message)

        return Child(name, "n1", hear)

    @property
    def records_read(self) -> int:
        return sum(map(len, self.store.reads))

    @property
    def journals_listed(self) -> int:
        """How often all journals were listed."""
        return sum(paths.journals() in folders for folders in self.store.listings)

    def require_signed_by(self, *signers: str) -> None:
        """Restart with these signers in the policy file."""
        self.signers = signers
        self.start()

    def apply(self, *flows: str) -> None:
        for flow in flows:
            apply_flow(Operator(self.store, "a", "", 0.0), TEXT.format(flow))

    def assign(self, *tasks: AssignedTask) -> None:
        self.store.write(paths.assignment("n1"), Assignment(tasks=tasks), ANY)

    def damage(self, path: object, data: bytes) -> None:
        self.store.tree.znodes[str(path)].data = data
        self.store.tree.changed(str(path))

    def reconnect(self) -> None:
        self.store.cut()
        self.store.heal()
        self.turns()

    def turns(self, seconds: float = 2 * LOOK_SECONDS) -> None:
        """Two turns a second, each until all events are handled."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.node.hear(Reported("ingest.0", {"type": "alive"}))
            self.node.turn()
            while self.node.has_news:
                self.node.turn()

    @property
    def znodes(self) -> dict[str, tuple[bytes, int, int]]:
        """All znodes with data, version and session."""
        znodes = self.store.tree.znodes.items()
        return {path: (znode.data, znode.version, znode.session) for path, znode in znodes}

    @property
    def live_uuid(self) -> str:
        """The UUID of the live data directory."""
        found = self.store.read(paths.live_node("n1"))
        assert found is not None
        return found.value.uuid

    @property
    def status(self) -> NodeStatus:
        found = self.store.read(paths.status("n1"))
        assert found is not None
        return found.value

    def states(self) -> dict[str, str]:
        return {key.partition("/")[0]: said.state for key, said in self.status.tasks.items()}
