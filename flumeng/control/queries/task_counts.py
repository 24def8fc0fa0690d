"""Events that collect tasks processed in the last 1, 5 and 15 minutes, as collectors report
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from flumeng.control.queries import asking
from flumeng.control.queries.reading import Reading
from flumeng.control.queries.task_status import TaskRow
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import CorruptError
from zkschema.records import COLLECT

Ask = Callable[[str], Sequence[Mapping[str, Any]]]
"""A row for each task of the collector at an address (``flumeng.agent.collector.task_counts``).
Raises ``UnavailableError``."""


@dataclass(frozen=True)
class TaskCountsRow:
    """What the present owner has counted ``since`` (seconds since the epoch). ``counts``:
    ``processed``, ``dropped``, ``parse_errors`` and ``dead_letters``, each by window (``1m``,
    ``5m``, ``15m``); None where nobody counts."""

    flow: str
    task: str
    node: str
    epoch: int
    since: float
    counts: Mapping[str, Mapping[str, int] | None]


@dataclass(frozen=True)
class TaskCounts:
    """``silent`` nodes did not answer for their tasks."""

    rows: tuple[TaskCountsRow, ...] = ()
    silent: tuple[str, ...] = ()


NO_COUNTS = TaskCounts()


def task_counts(store: ReadableStore, ask: Ask, tasks: Sequence[TaskRow]) -> TaskCounts:
    """Of those of ``tasks`` that collect and have an owner."""
    owned = {task.key: task for task in tasks if task.kind == COLLECT and task.node}
    nodes = sorted({task.node for task in owned.values() if task.node})

    def ask_one(address: str) -> Mapping[str, _Told]:
        try:
            return msgspec.convert(
                {f"{row['flow']}/{row['task']}": row for row in ask(address)}, dict[str, _Told]
            )
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{address} answers with what this flumeng does not understand: {error}"
            ) from error

    answers, silent = asking.ask_collectors(Reading(store), nodes, ask_one)
    rows = []
    for key, task in owned.items():
        node = task.node or ""
        told = answers.get(node, {}).get(key)
        if told is not None and told.epoch == task.epoch:
            own = (task.flow, task.task, node, told.epoch, told.since, told.counts)
            rows.append(TaskCountsRow(*own))
    return TaskCounts(tuple(rows), silent)


class _Told(msgspec.Struct):
    epoch: int
    since: float
    counts: dict[str, dict[str, int] | None]
