"""Events of the node's state machine, and the instructions that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flumeng.agent.node.protocol import Message
from zkschema.records import Assignment


@dataclass(frozen=True)
class Step:
    """A state change of the node, a child or a task, at ``seconds`` of the machine's clock."""

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
    """The assignment with the text of each (flow, revision), or the reason why it is unreadable."""

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
    """A child ended, or (``why``) did not start. ``running``: flows with unfinished jobs."""

    child: str
    code: int
    running: frozenset[str] = frozenset()
    why: str = ""


@dataclass(frozen=True)
class Tick:
    """Time has passed: restarts after a back-off and hung children may be due."""


@dataclass(frozen=True)
class Acked:
    """The acks of journals. ``acks``: the lowest of all readers; ``delivered``: of the journal's
    own flow where higher. ``unneeded`` journals and state of ``gone_flows`` may be removed."""

    acks: Mapping[str, int]
    unneeded: tuple[str, ...] = ()
    gone_flows: tuple[str, ...] = ()
    delivered: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivered:
    """The acks of journals by their own flows, for waiting senders."""

    acks: Mapping[str, int]


@dataclass(frozen=True)
class Replicas:
    """The memberships of replicated journals, as sent to the workers."""

    message: Message


@dataclass(frozen=True)
class Past:
    """The highest acked or decided offset of each local journal at the node's start; None when
    unknown. ``restored``: the data directory is a copy of a running node's."""

    seen: Mapping[str, int | None]
    restored: bool = False


@dataclass(frozen=True)
class Stop:
    """Stop the node; the collector may drain for ``drain_seconds``."""

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
    """Kill a child that hangs, has outdated settings or did not stop in time."""

    child: str
    why: str


@dataclass(frozen=True)
class Exit:
    """Exit, since all children have ended."""


Instruction = Start | Tell | Kill | Exit
