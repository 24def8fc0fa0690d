"""The processes of a node: where each answers, whether it does, and its last change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from zkschema.records import COLLECT, DISCOVER, GATEWAY, INGEST, LiveNode, StoryLine


@dataclass(frozen=True)
class ProcessRow:
    """A process of a live node. ``answers``: None if it was not asked. ``state``: after its last
    change in the event log at ``since``, seconds since the epoch; empty and None without one."""

    process: str
    address: str
    answers: bool | None
    state: str = ""
    since: float | None = None
    cause: str = ""


def processes(
    live: LiveNode, log: Sequence[StoryLine], answered: Collection[str]
) -> list[ProcessRow]:
    """Return the node process and those that it has started. ``answered``: the addresses that
    answered when all ingest workers and discovery processes were asked."""
    last = {line.who: line for line in log if line.after}
    named = {f"{INGEST}.{number}": address for number, address in enumerate(live.addresses)}
    named |= {DISCOVER: live.discovery}
    asked = set(named)
    named |= {COLLECT: live.collector, GATEWAY: live.gateway}
    rows = [ProcessRow("node", "", None, "running", live.since)]
    for name, address in named.items():
        line = last.get(name)
        if address or line:
            rows.append(
                ProcessRow(
                    process=name,
                    address=address,
                    answers=address in answered if address and name in asked else None,
                    state=line.after if line else "",
                    since=line.time if line else None,
                    cause=line.cause if line else "",
                )
            )
    return rows
