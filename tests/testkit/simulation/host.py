"""A host: its disk outlives its processes. At most one node at a time, and children that may
outlive it for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flumeng.agent.node.children import UNLIMITED, role_of
from flumeng.agent.node.settings import Settings
from tests.testkit.simulation.child import ChildProcess
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.collector import Collector
from tests.testkit.simulation.discovery import Discovery
from tests.testkit.simulation.disk import Journals, ModelDataDirectory
from tests.testkit.simulation.ingest import Ingest
from tests.testkit.simulation.node import NodeProcess
from zkschema.records import DISCOVER, INGEST


@dataclass(frozen=True)
class Profile:
    """The options of the host's node."""

    roles: tuple[str, ...]
    zone: str
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)


class Host:
    """``lost``: gone for good, with its disk."""

    def __init__(self, world: Cluster, name: str, profile: Profile) -> None:
        self.name = name
        self._world = world
        self._profile = profile
        self._home = ModelDataDirectory(f"data of {name}")
        self._journals = world.disks.of[name] = Journals(name)
        self.node: NodeProcess | None = None
        self.lost = False
        self._children: list[ChildProcess] = []
        self._started = 0
        self._replaced = 0

    def start(self) -> None:
        """Start a node with the state on its disk."""
        assert self.node is None
        settings = Settings(
            self.name,
            Path(self.name),
            "",
            roles=self._profile.roles,
            zone=self._profile.zone,
            labels=self._profile.labels,
            capacity=self._profile.capacity,
            limits=UNLIMITED,
            warm_collector=False,
        )
        self.node = NodeProcess(
            self._world, settings, self._home, self._start_child, self._node_stopped
        )
        self._world.enter(self.node)

    def kill_node(self) -> None:
        """SIGKILL: the children notice when they next read from it."""
        assert self.node is not None
        node, self.node = self.node, None
        self._world.leave(node)
        for child in self._children:
            child.orphan()

    @property
    def busy(self) -> bool:
        """Whether a step of one of its processes is under way."""
        node = self.node is not None and self.node.busy
        return node or any(child.busy for child in self._children if child.alive)

    def lose(self) -> None:
        """The host is lost with its disk, for good; not while it is ``busy``."""
        self.lost = True
        if self.node is not None:
            self.kill_node()
        for child in self._children:
            child.kill()

    def replace(self) -> None:
        """A new host under the same name, with an empty disk."""
        self.lost = False
        self._replaced += 1
        self._home = ModelDataDirectory(f"data of {self.name}, {self._replaced}")
        self._journals.lose()

    def _node_stopped(self) -> None:
        assert self.node is not None
        node, self.node = self.node, None
        self._world.leave(node)

    def _start_child(self, role: str) -> ChildProcess:
        assert self.node is not None
        self._started += 1
        name, node = f"{self.name}.{role}.{self._started}", self.node.node
        child: ChildProcess
        if role_of(role) == INGEST:
            child = Ingest(self._world, node, role, name, self._journals)
        else:
            kind = Discovery if role == DISCOVER else Collector
            child = kind(self._world, node, role, name)
        self._children = [other for other in self._children if other.alive]
        self._children.append(child)
        self._world.enter(child)
        return child
