"""The changes of a flow in time: event logs of nodes, outcomes of tasks, revisions, the audit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flumeng.control.commands.lookup import found_by_name
from flumeng.control.queries.history import AuditRow, audit
from flumeng.control.queries.overview import FlowDetail
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import ReadableStore, Unreadable, Versioned
from zkschema import paths

Lane = Literal["audit", "node", "task"]
MOST_AUDIT = 500


@dataclass(frozen=True)
class Moment:
    """A change. ``time``: seconds since the epoch, by the clock of the author's host. ``lane``:
    ``audit`` for changes by people, ``node`` for a node's event log, ``task`` for a task's outcome.
    ``who``: the person or node. ``what``: the command, or the change of state; ``why``. ``about``:
    the subject of a line of an event log, such as a task."""

    time: float
    lane: Lane
    who: str
    what: str
    why: str
    about: str = ""


@dataclass(frozen=True)
class Timeline:
    """``moments``: newest first. ``problems``: why some are missing."""

    moments: Sequence[Moment]
    problems: Sequence[str] = ()


def timeline(store: ReadableStore, flow: FlowDetail) -> Timeline:
    """Return the flow's changes that the cluster still keeps. ``flow``: as ``overview.flow``."""
    cache = ReadCache.of(store)
    nodes = sorted({task.node for task in flow.tasks if task.node} | {e.node for e in flow.ended})
    logs = found_by_name(cache, paths.story, [node for node in nodes if node])
    moments = [*_audited(audit(cache, MOST_AUDIT), flow.flow)]
    problems = []
    for node, log in logs.items():
        if isinstance(log, Unreadable):
            problems.append(f"the event log of node {node} cannot be read: {log}")
        elif isinstance(log, Versioned):
            moments += [
                Moment(
                    line.time,
                    "node",
                    node,
                    f"{line.who}: {line.event} {_between(line.before, line.after)}",
                    line.cause,
                    line.who,
                )
                for line in log.value.lines
                if names(f"{line.who} {line.cause}", flow.flow)
            ]
    moments += [
        Moment(
            end.time, "task", end.node, f"task {end.task} {end.how} (epoch {end.epoch})", end.why
        )
        for end in flow.ended
    ]
    return Timeline(sorted(moments, key=lambda moment: -moment.time), problems)


def _audited(rows: Sequence[AuditRow], flow: str) -> Iterator[Moment]:
    for row in rows:
        if names(row.command, flow):
            yield Moment(row.time, "audit", row.who, row.command, row.reason)


def _between(before: str, after: str) -> str:
    return " to ".join(filter(None, (before, after)))


def names(text: str, flow: str) -> bool:
    """Return whether a text has the flow's name as a word, or a task of it."""
    return bool(re.search(rf"(?<![\w.:/-]){re.escape(flow)}(?![\w.:-])", text))
