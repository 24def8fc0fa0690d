"""What happens to a node, and what its machine has it do about that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flumeng.agent.node.protocol import Message
from zkschema.records import Assignment


@dataclass(frozen=True)
class Wanted:
    """The assignment to run now, with the text of each (flow, revision) that it names, or why that
    text cannot be read."""

    version: int
    assignment: Assignment
    texts: Mapping[tuple[str, int], str]
    unreadable: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """A message from a child."""

    child: str
    message: Message


@dataclass(frozen=True)
class Ended:
    """A child's process is gone; of ``running`` flows, a collector's jobs had not ended."""

    child: str
    code: int
    running: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Tick:
    """Time passes: children whose back-off is over may start, those that hang are killed."""


@dataclass(frozen=True)
class Acked:
    """Up to where all who read some of the local journals have acked them; which journals nobody
    needs any more, and which of the flows whose source state is kept are deleted. ``delivered``:
    of those that others read more slowly than the flow itself, up to where the flow's own cursor
    has acked them."""

    acks: Mapping[str, int]
    unneeded: tuple[str, ...] = ()
    gone_flows: tuple[str, ...] = ()
    delivered: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivered:
    """Up to where the flow's own cursor has acked the journals that are awaited."""

    acks: Mapping[str, int]


@dataclass(frozen=True)
class Replicas:
    """Who holds the replicated journals that concern this node: what the workers are told."""

    message: Message


@dataclass(frozen=True)
class Past:
    """How far readers had come in the journals that lay here when the node started: journal -> the
    highest offset that any of them has acked or decided to read to, None while that is not known.
    ``restored``: the data directory is a copy of that of a running node."""

    seen: Mapping[str, int | None]
    restored: bool = False


@dataclass(frozen=True)
class Stop:
    """The node is to stop; the collector may drain for this long."""

    drain_seconds: float


Event = Wanted | Said | Ended | Tick | Acked | Delivered | Replicas | Past | Stop


@dataclass(frozen=True)
class Start:
    child: str


@dataclass(frozen=True)
class Tell:
    child: str
    message: Message


@dataclass(frozen=True)
class Kill:
    """The child, with all that it has started, did not stop in its time, or hangs."""

    child: str
    why: str


@dataclass(frozen=True)
class Exit:
    """Everything is stopped: the node's process may end."""


Instruction = Start | Tell | Kill | Exit
