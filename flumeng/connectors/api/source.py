"""What a source is, and what it is given.

A source receives events of one kind and hands them over as blocks. It never waits for the disk: it
is told when to pause. It knows nothing of journals, tasks or the node.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.connectors.api.counters import Counters
from flumeng.connectors.api.deliveries import Deliveries
from flumeng.connectors.api.received_block import ReceivedBlock


def now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True)
class SourceContext:
    """The way into a flow's journal, for one run of one source.

    ``submit`` takes a block and never blocks; called in the event loop's thread. ``fail`` says that
    the source cannot go on: it is stopped and started anew a little later. ``changed`` says that
    ``problem`` is another one now. ``state`` is the flow's journaled source state at the start.
    ``share_ports``: other workers of this node run the same source on the same address.
    ``counters`` are the source's own; what is submitted is counted by whoever takes it. ``policy``
    is for what only shows when a file is opened; the options were checked against it. ``held_by``
    says why the journal can take nothing now; it is empty when it can, or is only behind. ``note``
    makes changes of the source state durable at once and beside the journal, also when that takes
    nothing: what is journaled under such a key counts before it. It blocks, raises OSError, and is
    for any thread. ``deliveries`` tell when what is durable is in the flow's sinks.
    """

    hostname: str
    state: Mapping[str, object]
    submit: Callable[[ReceivedBlock], None]
    fail: Callable[[Exception], None]
    changed: Callable[[], None]
    clock_us: Callable[[], int] = now_us
    share_ports: bool = False
    counters: Counters = field(default_factory=Counters)
    policy: Policy = UNRESTRICTED
    held_by: Callable[[], str] = str
    note: Callable[[Mapping[str, object]], None] = lambda _: None
    deliveries: Deliveries = field(default_factory=Deliveries)


class Source(ABC):
    """One source of one flow. Made, started and stopped once; all in the event loop's thread."""

    spreads: bool = False
    """Whether all workers of a node run it at once; they listen on the same address."""

    addresses: tuple[str, ...] = ()
    """Where it listens, once started: "host:port" with the real port."""

    problem: str | None = None
    """What keeps a part of it from working while the rest goes on."""

    held_by: str = ""
    """What this source itself waits for and cannot go on without, for people."""

    held_since: float = 0.0
    """Since when, in the event loop's time."""

    @abstractmethod
    def __init__(self, options: Any, context: SourceContext) -> None:
        """Keep the options; acquire nothing yet."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to receive. Raises UserError with one sentence when that cannot be now.

        ``stop`` is called also after a start that raised.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Hand over what was received and let go of everything; nothing is submitted after it."""

    @abstractmethod
    def pause(self) -> None:
        """The journal is behind: receive nothing more until ``resume``. May follow ``pause``."""

    @abstractmethod
    def resume(self) -> None:
        """The journal has caught up."""
