"""Events of the node's machine, and the instructions it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flumeng.agent.node.protocol import Message
from zkschema.records import Assignment


@dataclass(frozen=True)
class Step:
    """A state change of the node, a child or a task; ``seconds``: by the machine's clock."""

    number: int
    seconds: float
    who: str
    event: str
    before: str
    after: str
    cause: str = ""

    def __str__(self) -> str:
        cause = f": {self.cause}" if self.cause else ""
        return f"{self.who}: {self.before or '-'} -> {self.after or '-'} ({self.event}{cause})"


@dataclass(frozen=True)
class Assigned:
    """The assignment, with the text of each (flow, revision) in it, or why that is unreadable."""

    version: int
    assignment: Assignment
    texts: Mapping[tuple[str, int], str]
    unreadable: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reported:
    child: str
    message: Message


@dataclass(frozen=True)
class Ended:
    """A child's process has ended; ``running``: flows with unfinished jobs of a collector."""

    child: str
    code: int
    running: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Tick:
    """Time passes: restarts after back-off, and hung children, are due."""


@dataclass(frozen=True)
class Acked:
    """``acks``: the lowest ack of all readers of a journal; ``delivered``: the flow's own where
    higher. ``unneeded`` journals and the state of ``gone_flows`` may be removed."""

    acks: Mapping[str, int]
    unneeded: tuple[str, ...] = ()
    gone_flows: tuple[str, ...] = ()
    delivered: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivered:
    """The flow's own acks of awaited journals."""

    acks: Mapping[str, int]


@dataclass(frozen=True)
class Replicas:
    """The memberships of replicated journals, as sent to the workers."""

    message: Message


@dataclass(frozen=True)
class Past:
    """The highest acked or decided offset of each local journal at the start; None: unknown.
    ``restored``: the data directory is a copy of a running node's."""

    seen: Mapping[str, int | None]
    restored: bool = False


@dataclass(frozen=True)
class Stop:
    """Stops the node; the collector may drain for ``drain_seconds``."""

    drain_seconds: float


Event = Assigned | Reported | Ended | Tick | Acked | Delivered | Replicas | Past | Stop


@dataclass(frozen=True)
class Start:
    child: str


@dataclass(frozen=True)
class Tell:
    child: str
    message: Message


@dataclass(frozen=True)
class Kill:
    """Kills a child that hangs or did not stop in time."""

    child: str
    why: str


@dataclass(frozen=True)
class Exit:
    """All children have ended."""


Instruction = Start | Tell | Kill | Exit
