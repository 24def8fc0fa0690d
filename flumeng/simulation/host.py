"""A host: its disk outlives its processes. At most one node at a time, and children that may
outlive it for a while."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flumeng.node.children import role_of
from flumeng.simulation.child import ChildProcess
from flumeng.simulation.collector import Collector
from flumeng.simulation.disk import Journals, ModelHome
from flumeng.simulation.ingest import Ingest
from flumeng.simulation.node import NodeProcess
from zkschema.records import INGEST

if TYPE_CHECKING:
    from flumeng.simulation.world import World


class Host:
    def __init__(self, world: World, name: str, roles: tuple[str, ...], zone: str) -> None:
        self.world = world
        self.name = name
        self.roles = roles
        self.zone = zone
        self.path = Path(name)
        self.home = ModelHome(f"data of {name}")
        self.journals = Journals()
        self.node: NodeProcess | None = None
        self._children: list[ChildProcess] = []
        self._started = 0

    def start(self) -> None:
        """Start a node; it goes on from what the disk keeps."""
        assert self.node is None
        self.node = NodeProcess(self)
        self.world.enter(self.node)

    def kill_node(self) -> None:
        """SIGKILL: the children notice when they next read from it."""
        assert self.node is not None
        node, self.node = self.node, None
        self.world.leave(node)
        for child in self._children:
            child.orphan()

    def node_ended(self) -> None:
        """The node has stopped its children and then itself."""
        assert self.node is not None
        node, self.node = self.node, None
        self.world.leave(node)

    def start_child(self, role: str) -> ChildProcess:
        assert self.node is not None
        self._started += 1
        kind = Ingest if role_of(role) == INGEST else Collector
        child = kind(self, role, f"{self.name}.{role}.{self._started}")
        self._children = [other for other in self._children if other.alive]
        self._children.append(child)
        self.world.enter(child)
        return child

    @property
    def serves(self) -> bool:
        """Whether its journals can be read now."""
        writer = self.journals.writer
        return isinstance(writer, ChildProcess) and writer.paused_until <= self.world.now
