"""Reads of nodes and tasks."""

from __future__ import annotations

from typing import Literal

from flumeng.console.api.flow_reads import LABELS, labelled
from flumeng.console.api.read import Given, Name, Paging, Parameter, Reads, in_flow
from flumeng.console.console import Console
from flumeng.console.shared_answers import KEEP_SECONDS
from flumeng.control.commands.lookup import require_flow
from flumeng.control.queries import details, overview
from flumeng.control.queries.acks import positions
from flumeng.control.queries.task_status import EndedRow, TaskRow

OF_FLOW = Parameter("flow", "Only of this flow.", Name)
TASK_STATE = Parameter(
    "state",
    "Only in this state.",
    Literal[
        "down",
        "draining",
        "failed",
        "retrying",
        "running",
        "starting",
        "stopped",
        "unknown",
        "waiting",
    ],
)


READS = Reads()


@READS.get("node-list", "/nodes", LABELS, paging=Paging(lambda row: row.node))
def _nodes(console: Console, given: Given) -> list[overview.NodeRow]:
    """All nodes."""
    labels = labelled(given).items()
    with console.copy.query() as cache:
        return [row for row in overview.nodes(cache) if labels <= row.labels.items()]


@READS.get("node-show", "/nodes/{node}", shared_seconds=KEEP_SECONDS)
def _node(console: Console, given: Given) -> details.NodeDetail:
    """One node: its tasks, and the events in its journals that are not in the sinks yet."""
    with console.copy.query() as cache:
        where = positions(cache, console.asking.acks)
        return details.node(cache, where, given["node"])


@READS.get("node-story", "/nodes/{node}/story")
def _story(console: Console, given: Given) -> details.EventLog:
    """The event log of a node, oldest event first; also of a dead node."""
    with console.copy.query() as cache:
        return details.event_log(cache, given["node"])


@READS.get("task-list", "/tasks", OF_FLOW, TASK_STATE, paging=in_flow("task"))
def _tasks(console: Console, given: Given) -> list[TaskRow]:
    """The tasks of all flows, or of one."""
    with console.copy.query() as cache:
        if "flow" in given:
            require_flow(cache, given["flow"])
        rows = overview.tasks(cache)
    return [
        row
        for row in rows
        if row.flow == given.get("flow", row.flow) and row.state == given.get("state", row.state)
    ]


@READS.get("task-ended", "/tasks/ended", OF_FLOW, command="task list --ended")
def _ended(console: Console, given: Given) -> list[EndedRow]:
    """The outcomes of ended tasks, as far as they are kept."""
    with console.copy.query() as cache:
        if "flow" in given:
            require_flow(cache, given["flow"])
        return [row for row in overview.ended(cache) if row.flow == given.get("flow", row.flow)]


@READS.get(
    "task-show",
    "/tasks/{flow}/{task}",
    command="task show {flow}/{task}",
    shared_seconds=KEEP_SECONDS,
)
def _task(console: Console, given: Given) -> details.TaskDetail:
    """One task: its position in each partition, and the outcome of its events."""
    with console.copy.query() as cache:
        where = positions(cache, console.asking.acks)
        key = f"{given['flow']}/{given['task']}"
        return details.task(cache, where, console.asking.counters, key)
