"""Reads of nodes and tasks."""

from __future__ import annotations

from typing import Literal

from flumeng.console.api.flow_reads import LABELS, labelled
from flumeng.console.api.read import Given, Name, Paging, Parameter, Read
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


def _nodes(console: Console, given: Given) -> list[overview.NodeRow]:
    labels = labelled(given).items()
    with console.copy.query() as cache:
        return [row for row in overview.nodes(cache) if labels <= row.labels.items()]


def _node(console: Console, given: Given) -> details.NodeDetail:
    with console.copy.query() as cache:
        where = positions(cache, console.asking.acks)
        return details.node(cache, where, given["node"])


def _story(console: Console, given: Given) -> details.EventLog:
    with console.copy.query() as cache:
        return details.event_log(cache, given["node"])


def _tasks(console: Console, given: Given) -> list[TaskRow]:
    with console.copy.query() as cache:
        if "flow" in given:
            require_flow(cache, given["flow"])
        rows = overview.tasks(cache)
    return [
        row
        for row in rows
        if row.flow == given.get("flow", row.flow) and row.state == given.get("state", row.state)
    ]


def _ended(console: Console, given: Given) -> list[EndedRow]:
    with console.copy.query() as cache:
        if "flow" in given:
            require_flow(cache, given["flow"])
        return [row for row in overview.ended(cache) if row.flow == given.get("flow", row.flow)]


def _task(console: Console, given: Given) -> details.TaskDetail:
    with console.copy.query() as cache:
        where = positions(cache, console.asking.acks)
        key = f"{given['flow']}/{given['task']}"
        return details.task(cache, where, console.asking.counters, key)


READS = (
    Read(
        "node-list",
        "/nodes",
        "flumeng node list",
        "All nodes.",
        list[overview.NodeRow],
        _nodes,
        (LABELS,),
        Paging(lambda row: row.node),
    ),
    Read(
        "node-show",
        "/nodes/{node}",
        "flumeng node show {node}",
        "One node: its tasks, and the events in its journals that are not in the sinks yet.",
        details.NodeDetail,
        _node,
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "node-story",
        "/nodes/{node}/story",
        "flumeng node story {node}",
        "The event log of a node, oldest event first; also of a dead node.",
        details.EventLog,
        _story,
    ),
    Read(
        "task-list",
        "/tasks",
        "flumeng task list",
        "The tasks of all flows, or of one.",
        list[TaskRow],
        _tasks,
        (OF_FLOW, TASK_STATE),
        Paging(lambda row: row.key, lambda key: tuple(key.split("/", 1))),
    ),
    Read(
        "task-ended",
        "/tasks/ended",
        "flumeng task list --ended",
        "The outcomes of ended tasks, as far as they are kept.",
        list[EndedRow],
        _ended,
        (OF_FLOW,),
    ),
    Read(
        "task-show",
        "/tasks/{flow}/{task}",
        "flumeng task show {flow}/{task}",
        "One task: its position in each partition, and the outcome of its events.",
        details.TaskDetail,
        _task,
        shared_seconds=KEEP_SECONDS,
    ),
)
