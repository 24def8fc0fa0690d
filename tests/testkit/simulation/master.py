"""A master of a world: the real one, woken by its watches and its timer."""

from __future__ import annotations

from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.environment import Process

IDLE = "nothing to do"
LEAST_REST_SECONDS = 0.1
SETTLE_SECONDS = 2.0
"""Changes that come together are one; at most so long after the last look."""


class MasterProcess(Process):
    """``unwatched``: its watchdog cannot end it either, such as when its interpreter hangs."""

    unwatched = False

    def __init__(self, world: Cluster, name: str) -> None:
        super().__init__(world, name)
        self._world = world
        self.session = world.connect(name)
        self._master = world.parts.master(self.session, name, world.clock)
        self._master.grab(lambda: world.greedy and world.rough)
        self._settled = 0.0

    @property
    def ready(self) -> bool:
        return super().ready or (self._master.woken and self._world.now >= self._settled)

    @property
    def stuck(self) -> bool:
        """Whether its watchdog ends it."""
        return self.hangs and not self.unwatched and bool(self._master.measures.health.stuck)

    def step(self) -> None:
        sentence = self._master.turn()
        self._settled = self._world.now + SETTLE_SECONDS * self._world.random.random()
        self.due = self._world.now + max(LEAST_REST_SECONDS, self._master.wait_seconds)
        if sentence != IDLE:
            self.say(sentence)
