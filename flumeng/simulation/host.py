"""A host: its disk outlives its processes. At most one node at a time, and children that may
outlive it for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Profile:
    """What the host's node is started with."""

    roles: tuple[str, ...]
    zone: str
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)


class Host:
    """``lost``: gone for good, with its disk."""

    def __init__(self, world: World, name: str, profile: Profile) -> None:
        self.world = world
        self.name = name
        self.profile = profile
        self.path = Path(name)
        self.home = ModelHome(f"data of {name}")
        self.journals = Journals()
        self.node: NodeProcess | None = None
        self.lost = False
        self._children: list[ChildProcess] = []
        self._started = 0
        self._replaced = 0

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

    @property
    def busy(self) -> bool:
        """Whether a step of one of its processes is under way."""
        node = self.node is not None and self.node.busy
        return node or any(child.busy for child in self._children if child.alive)

    def lose(self) -> None:
        """The host is gone with all that it has, for good; not while it is ``busy``."""
        self.lost = True
        if self.node is not None:
            self.kill_node()
        for child in self._children:
            child.kill()

    def replace(self) -> None:
        """A new host under the same name, with an empty disk."""
        self.lost = False
        self._replaced += 1
        self.home = ModelHome(f"data of {self.name}, {self._replaced}")
        made = self.journals.made
        self.journals = Journals(made=made)

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
