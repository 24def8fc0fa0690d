"""A node of a world: the real node with its machine and its znodes, over modelled children."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from flumeng.node.children import UNLIMITED
from flumeng.node.daemon import TICK_SECONDS, Node, Settings
from flumeng.node.events import Event, Tick
from flumeng.node.home import Home
from flumeng.node.protocol import Message
from flumeng.simulation.process import Process
from flumeng.store import Store

if TYPE_CHECKING:
    from flumeng.simulation.host import Host

TURN_SECONDS = 30 * TICK_SECONDS


class Child(Protocol):
    """A child process as its node sees it."""

    def tell(self, message: Message) -> None: ...

    def kill(self) -> None: ...


class SteppedNode(Node):
    """A node whose turns are called for, and whose children are modelled."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        store: Store,
        clock: Callable[[], float],
        start: Callable[[str], Child],
    ) -> None:
        super().__init__(settings, home, store, clock)
        self._start_child = start

    @property
    def has_news(self) -> bool:
        return not self._events.empty()

    @property
    def has_ended(self) -> bool:
        return self._exit

    def _next_event(self) -> Event:
        try:
            return self._events.get_nowait() or Tick()
        except queue.Empty:
            return Tick()

    def _start(self, child: str) -> None:
        self._children[child] = self._start_child(child)  # type: ignore[assignment]


class NodeProcess(Process):
    """Ends when the node has stopped; when it is killed, its children find out by themselves."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.world, host.name)
        self._host = host
        self.session = self.world.connect(host.name)
        settings = Settings(
            host.name,
            host.path,
            "",
            roles=host.profile.roles,
            zone=host.profile.zone,
            labels=host.profile.labels,
            capacity=host.profile.capacity,
            limits=UNLIMITED,
        )
        self.node = SteppedNode(
            settings, host.home, self.session, self.world.clock, host.start_child
        )
        self._begun = False

    @property
    def ready(self) -> bool:
        return super().ready or self.node.has_news

    def step(self) -> None:
        self.due = self.world.now + TURN_SECONDS
        if not self._begun:
            self._begun = True
            self.node.begin()
        self.node.turn()
        if self.node.has_ended:
            self.say("stopped")
            assert self.session is not None
            self.session.close()
            self._host.node_ended()
