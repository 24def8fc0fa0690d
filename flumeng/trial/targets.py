"""Tries the sinks of a flow from this host, before the flow is applied.

Another host may have other routes, secrets and certificates: the answer is true for this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from flumeng.errors import FlumengError
from flumeng.sinks import Probed, TaskRevision
from flumeng.spec import FlowSpec, registry
from flumeng.spec.component import Component

MOST_AT_ONCE = 16
"""Probes wait for their targets: those of a flow run beside each other."""


@dataclass(frozen=True)
class Tried:
    """``sink`` is its name; ``why`` is empty unless the state is ``failed``."""

    sink: str
    state: Literal["reached", "failed", "not tried"]
    why: str = ""


def tried(spec: FlowSpec) -> Iterator[Tried]:
    """Each sink of the flow, members of groups too, in the order of the file."""
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        yield from pool.map(lambda part: _tried(part, spec.flow), spec.targets)


def _tried(part: Component, flow: str) -> Tried:
    try:
        kind = registry.get("sink", part.name).implementation_class()
        sink = kind(part.options, TaskRevision(flow, "", 0))
        if not isinstance(sink, Probed):
            return Tried(part.name, "not tried")
        sink.probe()
    except FlumengError as error:
        return Tried(part.name, "failed", str(error))
    return Tried(part.name, "reached")
