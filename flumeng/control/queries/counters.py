"""Counters of a flow's sources since their workers started, as nodes report them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flumeng.control.commands.flow_records import require_flow
from flumeng.control.queries import asking
from flumeng.control.queries.reading import Reading
from flumeng.control.zookeeper import Store

Ask = Callable[[str], Sequence[Mapping[str, Any]]]
"""A row for each source of the worker at an address (``flumeng.connectors.api.counters``). Raises
``UnavailableError``."""

_NO_COUNTERS = {"flow", "source", "held_by", "held_seconds", "lost_files"}


def ask_worker(address: str) -> Sequence[Mapping[str, Any]]:
    from flumeng.journal.serving.client import JournalClient  # noqa: PLC0415  loads pyarrow

    with JournalClient(address, asking.CALL_SECONDS) as client:
        return client.counters()


@dataclass(frozen=True)
class CounterRow:
    """One source on one node; ``counters`` are sums over the node's workers. ``held_by``: why it
    takes nothing now, of the worker that is held for longest."""

    node: str
    source: str
    counters: Mapping[str, int]
    held_by: str
    held_seconds: float


def counters(store: Store, ask: Ask, flow: str) -> tuple[list[CounterRow], tuple[str, ...]]:
    """The rows of a flow, and the nodes that did not answer."""
    require_flow(store, flow)

    def ask_one(address: str) -> Mapping[str, Mapping[str, Any]]:
        return {f"{address} {index}": row for index, row in enumerate(ask(address))}

    answers, silent = asking.ask_all(Reading(store), ask_one)
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for node, rows in answers.items():
        for row in rows.values():
            if row["flow"] == flow:
                found.setdefault((node, row["source"]), []).append(row)
    return [_row(node, source, found[node, source]) for node, source in sorted(found)], silent


def _row(node: str, source: str, workers: Sequence[Mapping[str, Any]]) -> CounterRow:
    total: dict[str, int] = {}
    held_by, held_seconds = "", 0.0
    for row in workers:
        for name in row.keys() - _NO_COUNTERS:
            total[name] = total.get(name, 0) + row[name]
        if row.get("held_by") and (not held_by or row["held_seconds"] > held_seconds):
            held_by, held_seconds = row["held_by"], row["held_seconds"]
    return CounterRow(node, source, total, held_by, held_seconds)
