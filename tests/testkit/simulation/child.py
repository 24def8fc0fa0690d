"""A child of a node: messages come in, messages go out, and it ends when its node is gone."""

from __future__ import annotations

from collections import deque

from flumeng.agent.node.events import Ended, Reported
from flumeng.agent.node.protocol import Message
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.environment import Process
from tests.testkit.simulation.stepped_node import SteppedNode

END_OF_INPUT: Message = {"type": "end of input"}


class ChildProcess(Process):
    """``alive`` until it has ended; messages to a node that is gone are lost."""

    def __init__(self, world: Cluster, parent: SteppedNode, role: str, name: str) -> None:
        super().__init__(world, name)
        self.world = world
        self.role = role
        self.alive = True
        self.inbox: deque[Message] = deque()
        self._parent: SteppedNode | None = parent
        self._said: Message | None = None

    @property
    def ready(self) -> bool:
        return super().ready or bool(self.inbox)

    def tell(self, message: Message) -> None:
        """Receive a message from the node."""
        self.inbox.append(message)

    def kill(self) -> None:
        """SIGKILL, by its node or by chance."""
        self.exit(-9)

    def orphan(self) -> None:
        self._parent = None
        self.inbox.append(END_OF_INPUT)

    def send(self, message: Message) -> None:
        if self._parent is not None:
            self._parent.hear(Reported(self.role, message))

    def report(self, status: Message) -> None:
        """Send a status unless it equals the last one."""
        if status != self._said:
            self._said = status
            self.send(status)

    def exit(self, code: int) -> None:
        if not self.alive:
            return
        self.alive = False
        self.say(f"ends with code {code}")
        self.world.leave(self)
        if self._parent is not None:
            self._parent.hear(Ended(self.role, code))
