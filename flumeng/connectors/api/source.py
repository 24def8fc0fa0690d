"""The contract of sources. A source receives events of one kind and submits them as blocks. It is
paused instead of waiting for the disk. It knows nothing of journals, tasks or the node."""

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
    """The services of the worker for one run of a source.

    ``submit`` takes a block without blocking, in the thread of the event loop. ``fail`` reports
    that the source cannot go on; it is restarted later. ``changed`` reports that ``problem`` has
    changed. ``state``: the journaled source state at the start. ``share_ports``: other workers of
    this node listen on the same address. ``counters``: of the source; submitted blocks are counted
    elsewhere. ``policy`` is for checks that need an opened file. ``held_by``: why the journal is
    blocked, else empty. ``note`` makes changes of the state durable at once, outside the journal; a
    journaled value of the same key takes precedence. It blocks, raises OSError, and is thread-safe.
    ``deliveries``: waits until durable events are in the sinks.
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
    """One source of one flow. Created, started and stopped once, in the event loop's thread."""

    spreads: bool = False
    """Whether all workers of a node run it, listening on the same address."""

    addresses: tuple[str, ...] = ()
    """Where the source listens, once started: "host:port" with the real port."""

    problem: str | None = None
    """Why a part of the source does not work while the other parts do; else None."""

    held_by: str = ""
    """Why this source itself is blocked, for people; else empty."""

    held_since: float = 0.0
    """When the source was blocked, in the event loop's time."""

    @abstractmethod
    def __init__(self, options: Any, context: SourceContext) -> None:
        """Keep the options; acquire nothing yet."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to receive. Raises UserError if a person must act; ``stop`` is called then too."""

    @abstractmethod
    async def stop(self) -> None:
        """Submit all received events and release all resources; submit nothing afterwards."""

    @abstractmethod
    def pause(self) -> None:
        """Receive nothing until ``resume``: the journal is behind. May be called again."""

    @abstractmethod
    def resume(self) -> None: ...
