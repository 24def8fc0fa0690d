"""Counters of sources and collect tasks, as workers and collectors report them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from flumeng.control.commands.lookup import require_flow
from flumeng.control.commands.settings import chokes
from flumeng.control.queries import fan_out
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.queries.task_status import TaskRow
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import CorruptError
from zkschema.records import COLLECT

Ask = Callable[[str], Sequence[Mapping[str, Any]]]
"""Returns the rows at an address: one per source or task. Raises ``UnavailableError``."""


@dataclass(frozen=True)
class TaskCountsRow:
    """Counts by a task's owner ``since`` (seconds since the epoch): ``processed``, ``dropped``,
    ``parse_errors`` and ``dead_letters``, each by window (``1m``, ``5m``, ``15m``), or None."""

    flow: str
    task: str
    node: str
    epoch: int
    since: float
    counts: Mapping[str, Mapping[str, int] | None]


@dataclass(frozen=True)
class TaskCounts:
    """Counts of tasks; ``silent`` nodes did not answer."""

    rows: tuple[TaskCountsRow, ...] = ()
    silent: tuple[str, ...] = ()


NO_COUNTS = TaskCounts()


def task_counts(store: ReadableStore, ask: Ask, tasks: Sequence[TaskRow]) -> TaskCounts:
    """Return the counts of collect tasks, as their owners report them under the planned epoch."""
    owned = {task.key: task for task in tasks if task.kind == COLLECT and task.node}
    nodes = sorted({task.node for task in owned.values() if task.node})

    def ask_one(address: str) -> Mapping[str, _Counts]:
        try:
            return msgspec.convert(
                {f"{row['flow']}/{row['task']}": row for row in ask(address)}, dict[str, _Counts]
            )
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise CorruptError(f"unexpected answer of {address}: {error}") from error

    answers, silent = fan_out.ask_collectors(ReadCache(store), nodes, ask_one)
    rows = []
    for key, task in owned.items():
        node = task.node or ""
        counts = answers.get(node, {}).get(key)
        if counts is not None and counts.epoch == task.epoch:
            own = (task.flow, task.task, node, counts.epoch, counts.since, counts.counts)
            rows.append(TaskCountsRow(*own))
    return TaskCounts(tuple(rows), silent)


class _Counts(msgspec.Struct):
    epoch: int
    since: float
    counts: dict[str, dict[str, int] | None]


_NO_COUNTERS = {"flow", "source", "held_by", "held_seconds", "lost_files"}


def ask_worker(address: str) -> Sequence[Mapping[str, Any]]:
    with fan_out.client(address) as client:
        return client.counters()


@dataclass(frozen=True)
class CounterRow:
    """A source on a node, summed over workers. ``held_by``: why the one held longest waits."""

    node: str
    source: str
    counters: Mapping[str, int]
    held_by: str
    held_seconds: float


@dataclass(frozen=True)
class FlowCounters:
    """The sources of a flow. ``chokes``: limits in bytes per second by node; "" for all others."""

    chokes: Mapping[str, float]
    sources: tuple[CounterRow, ...]


def flow_counters(
    store: ReadableStore, ask: Ask, flow: str
) -> tuple[FlowCounters, tuple[str, ...]]:
    """Return a flow's limits and counters, and the nodes that did not answer."""
    limits = chokes(store, flow)
    rows, silent = counters(store, ask, flow)
    return FlowCounters({node or "": rate for node, rate in limits.items()}, tuple(rows)), silent


def counters(store: ReadableStore, ask: Ask, flow: str) -> tuple[list[CounterRow], tuple[str, ...]]:
    require_flow(store, flow)

    def ask_one(address: str) -> Mapping[str, Mapping[str, Any]]:
        return {f"{address} {index}": row for index, row in enumerate(ask(address))}

    answers, silent = fan_out.ask_all(ReadCache(store), ask_one)
    by_source: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for node, rows in answers.items():
        for row in rows.values():
            if row["flow"] == flow:
                by_source.setdefault((node, row["source"]), []).append(row)
    return [_row(*key, by_source[key]) for key in sorted(by_source)], silent


def _row(node: str, source: str, workers: Sequence[Mapping[str, Any]]) -> CounterRow:
    total: dict[str, int] = {}
    held_by, held_seconds = "", 0.0
    for row in workers:
        for name in row.keys() - _NO_COUNTERS:
            total[name] = total.get(name, 0) + row[name]
        if row.get("held_by") and (not held_by or row["held_seconds"] > held_seconds):
            held_by, held_seconds = row["held_by"], row["held_seconds"]
    return CounterRow(node, source, total, held_by, held_seconds)
