"""The real node with its machine and its znodes, whose turns are called for, over modelled
children."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Protocol

from flumeng.agent.node.daemon import Node
from flumeng.agent.node.data_directory import DataDirectory
from flumeng.agent.node.events import Event, Tick
from flumeng.agent.node.protocol import Message
from flumeng.agent.node.settings import Settings
from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.control.zookeeper import Store


class Child(Protocol):
    """A child process as its node sees it."""

    def tell(self, message: Message) -> None: ...

    def kill(self) -> None: ...


class SteppedNode(Node):
    """A node whose turns the simulation calls, with modelled children."""

    def __init__(
        self,
        settings: Settings,
        home: DataDirectory,
        store: Store,
        clock: Callable[[], float],
        start: Callable[[str], Child],
        *,
        allowed: Policy = UNRESTRICTED,
    ) -> None:
        super().__init__(settings, home, store, clock, allowed=allowed)
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
