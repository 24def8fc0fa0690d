"""A node or a task in detail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.control.commands.lookup import require_node
from flumeng.control.commands.nodes import Left, left
from flumeng.control.queries import counters, overview
from flumeng.control.queries.acks import AckRow, Positions, acks_of
from flumeng.control.queries.counters import TaskCounts
from flumeng.control.queries.overview import NodeRow
from flumeng.control.queries.task_status import TaskRow
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import UnknownNameError
from flumeng.platform.options.problems import nearest
from zkschema import paths


@dataclass(frozen=True)
class NodeDetail:
    """A node. ``journals``: undelivered events of each, or None. ``left``: work left to drain."""

    node: NodeRow
    tasks: tuple[TaskRow, ...]
    journals: Mapping[str, int | None]
    left: Left


@dataclass(frozen=True)
class EventRow:
    """An event in a node's log; ``time`` is in seconds since the epoch."""

    time: float
    who: str
    event: str
    before: str
    after: str
    cause: str


@dataclass(frozen=True)
class EventLog:
    node: str
    live: bool
    lines: tuple[EventRow, ...]


@dataclass(frozen=True)
class TaskDetail:
    task: TaskRow
    acks: tuple[AckRow, ...]
    counts: TaskCounts


def node(store: ReadableStore, where: Positions, name: str) -> NodeDetail:
    require_node(store, name)
    lags = {ack.partition: ack.lag for ack in acks_of(store, where)}
    remains = left(store, name)
    row = next((row for row in overview.nodes(store) if row.node == name), None)
    if row is None:
        raise UnknownNameError(f'there is no node "{name}" any more')
    return NodeDetail(
        node=row,
        tasks=tuple(task for task in overview.tasks(store) if task.node == name),
        journals={journal: lags.get(journal) for journal in remains.journals},
        left=remains,
    )


def event_log(store: ReadableStore, name: str) -> EventLog:
    require_node(store, name)
    current = store.read(paths.story(name))
    return EventLog(
        node=name,
        live=store.exists(paths.live_node(name)),
        lines=tuple(
            EventRow(line.time, line.who, line.event, line.before, line.after, line.cause)
            for line in (current.value.lines if current else ())
        ),
    )


def task(store: ReadableStore, where: Positions, ask: counters.Ask, key: str) -> TaskDetail:
    row = require_task(store, key)
    return TaskDetail(
        task=row,
        acks=tuple(
            ack
            for ack in acks_of(store, where)
            if ack.flow == row.flow and ack.partition in row.partitions
        ),
        counts=counters.task_counts(store, ask, [row]),
    )


def require_task(store: ReadableStore, key: str) -> TaskRow:
    """Return the task's row. Raises ``UserError`` with the nearest name for an unknown task."""
    planned = {f"{row.flow}/{row.task}": row for row in overview.tasks(store)}
    if key not in planned:
        hint = nearest(key, planned) if planned else "nothing is planned yet"
        raise UnknownNameError(f'there is no task "{key}"; {hint}')
    return planned[key]
