"""A node over a scripted ingest worker, and the cluster that it is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flumeng.agent.node.daemon import LOOK_SECONDS
from flumeng.agent.node.events import Event, Said
from flumeng.agent.node.home import Home
from flumeng.agent.node.protocol import Message
from flumeng.agent.node.settings import Settings
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY, Found, tree
from tests.testkit.light_nodes import ScriptedChild
from tests.testkit.simulation.stepped_node import SteppedNode
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths
from zkschema.records import INGEST, AssignedTask, Assignment, NodeStatus

TEXT = "{{flow: {}, sources: [syslog: {{listen: '127.0.0.1:0'}}], sinks: [noop]}}"


def task(flow: str, epoch: int = 1, revision: int = 1) -> AssignedTask:
    return AssignedTask(
        flow=flow,
        task="ingest.n1",
        kind=INGEST,
        epoch=epoch,
        revision=revision,
        state="running",
    )


class CountingStore(FakeStore):
    """Counts the records that are asked for; each request takes what ``passes`` has pass."""

    reads = 0
    listed_journals = 0

    def __init__(self, cluster: FakeTree | None) -> None:
        super().__init__(cluster)
        self.passes: Callable[[], None] = lambda: None

    def read_each(self, wanted: Sequence[Any]) -> list[Found[Any]]:
        self.reads += len(wanted)
        self.passes()
        return super().read_each(wanted)

    def children(self, path: Any) -> list[str]:
        self.listed_journals += str(path) == str(paths.journals())
        return super().children(path)


class Bench:
    """A node over a scripted ingest worker, and the cluster that it is in."""

    def __init__(self, data: Path, cluster: FakeTree | None = None) -> None:
        self.now = 100.0
        self.store = CountingStore(cluster)
        self.told: list[Message] = []
        self.data = data
        if cluster is None:
            tree.init(self.store)
        self.home = Home(data)
        self.signers: tuple[str, ...] = ()
        self.start()

    def start(self) -> None:
        """A new process on the same data directory."""
        settings = Settings("n1", self.data, "", roles=(INGEST,))
        self.home.close()
        self.home = Home(self.data)
        self.node = SteppedNode(
            settings,
            self.home,
            self.store,
            lambda: self.now,
            self.child,
            signers=self.signers,
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

    def require_signed_by(self, *signers: str) -> None:
        """As after a restart with these in the policy file."""
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
        """Twice a second, and each time until nothing is left to hear."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.node.hear(Said("ingest.0", {"type": "alive"}))
            self.node.turn()
            while self.node.has_news:
                self.node.turn()

    @property
    def znodes(self) -> dict[str, tuple[bytes, int, int]]:
        """All that is in ZooKeeper now: data, version and session of each znode."""
        znodes = self.store.tree.znodes.items()
        return {path: (znode.data, znode.version, znode.session) for path, znode in znodes}

    @property
    def live_uuid(self) -> str:
        """Of the data directory that is live."""
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
