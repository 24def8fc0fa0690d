"""A node of a world. It ends when it has stopped; when it is killed, its children find out by
themselves."""

from __future__ import annotations

from collections.abc import Callable

from flumeng.agent.node.daemon import TICK_SECONDS
from flumeng.agent.node.data_directory import DataDirectory
from flumeng.agent.node.settings import Settings
from tests.testkit.simulation.environment import Environment, Process
from tests.testkit.simulation.stepped_node import Child, SteppedNode

TURN_SECONDS = 30 * TICK_SECONDS


class NodeProcess(Process):
    """``on_stopped`` is called when the node has stopped its children and then itself."""

    def __init__(
        self,
        world: Environment,
        settings: Settings,
        home: DataDirectory,
        start_child: Callable[[str], Child],
        on_stopped: Callable[[], None],
    ) -> None:
        super().__init__(world, settings.name)
        self._world = world
        self._on_stopped = on_stopped
        self.session = world.connect(settings.name)
        self.node = SteppedNode(settings, home, self.session, world.clock, start_child)
        self._begun = False

    @property
    def ready(self) -> bool:
        return super().ready or self.node.has_news

    @property
    def stuck(self) -> bool:
        """Whether its watchdog ends it."""
        return self.hangs and bool(self.node.health.stuck)

    def step(self) -> None:
        self.due = self._world.now + TURN_SECONDS
        if not self._begun:
            self._begun = True
            self.node.begin()
        self.node.turn()
        if self.node.has_ended:
            self.say("stopped")
            assert self.session is not None
            self.session.close()
            self._on_stopped()
