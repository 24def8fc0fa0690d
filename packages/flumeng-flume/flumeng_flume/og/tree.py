"""The syntax tree of a specification of Flume OG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class At:
    """A position in a file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Call:
    """A source, sink, decorator or format: its name and arguments."""

    name: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    at: At = field(default=At(1, 1), compare=False)

    def text(self, number: int, otherwise: str = "") -> str:
        """Return an argument as written, without quotes; ``otherwise`` when it is missing."""
        if number >= len(self.args):
            return otherwise
        value = self.args[number]
        if isinstance(value, Call):
            return value.name
        return str(value).lower() if isinstance(value, bool) else str(value)


Value = str | int | float | bool | Call


@dataclass(frozen=True)
class FanOut:
    """``[a, b]``: each sink gets every event."""

    sinks: tuple[Sink, ...]


@dataclass(frozen=True)
class Failover:
    """``< a ? b >``: the second sink gets the events when the first one fails."""

    sinks: tuple[Sink, ...]


@dataclass(frozen=True)
class Decorated:
    """``{ deco => sink }``, or ``deco sink``."""

    decorator: Call
    sink: Sink


@dataclass(frozen=True)
class Rolled:
    """``roll(ms) { sink }`` and ``collector(ms) { sink }``."""

    by: Call
    sink: Sink


Sink = Call | FanOut | Failover | Decorated | Rolled


@dataclass(frozen=True)
class Node:
    """A logical node. ``flow`` is the name of the flow that it is configured in."""

    name: str
    source: Call
    sink: Sink
    at: At
    flow: str = "default-flow"


@dataclass(frozen=True)
class OnHost:
    """``map HOST NODE``: the physical node on which a logical one runs."""

    host: str
    node: str
    at: At


@dataclass(frozen=True)
class Passed:
    """A command of the shell that does not concern flows."""

    words: tuple[str, ...]
    at: At


Statement = Node | OnHost | Passed
