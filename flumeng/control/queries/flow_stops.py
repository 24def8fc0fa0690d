"""Finds where the events of a flow stop, from the errors of its tasks and sources. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flumeng.control.queries.counters import CounterRow
from flumeng.control.queries.flow_graph import FlowGraph, GraphNode
from flumeng.control.queries.task_status import TaskRow
from zkschema.records import COLLECT

Level = Literal["stopped", "late", "ok"]
PARTS = ("filter", "branch", "sink", "group", "dead letters")


@dataclass(frozen=True)
class Stop:
    """``level``: ``stopped`` when no event passes here, ``late`` when some wait or fail, else
    ``ok``."""

    level: Level
    why: str = ""


def stops(
    graph: FlowGraph,
    state: str,
    tasks: Sequence[TaskRow],
    sources: Sequence[CounterRow] = (),
    behind: str = "",
) -> Mapping[str, Stop]:
    """Return the stops by node of the graph; all nodes of a well flow are ``ok``. ``behind``: why
    the flow counts as late, or empty. A batch that is tried again stops at the sink that its error
    names, or at the only one. Other errors that name no part are at the start of collection."""
    found: dict[str, Stop] = {}
    entry = _entry(graph)
    sinks = [node.id for node in graph.nodes if node.kind == "sink"]
    for source in sources:
        if source.held_by:
            for node in _sources_of(graph, source.source):
                why = f"held by {source.held_by} for {source.held_seconds:.0f} s"
                found[node] = Stop("late", f"{why} on node {source.node}")
    if state != "running":
        return {**found, **dict.fromkeys(entry, Stop("stopped", f"the flow is {state}"))}
    collect = [task for task in tasks if task.kind == COLLECT]
    failing = [task for task in collect if task.state != "running" or task.why]
    standing = sum(task.state != "running" for task in collect)
    level: Level = "stopped" if standing == len(collect) else "late"
    for task in failing:
        why = f"task {task.task} is {task.state}" + (f": {task.why}" if task.why else "")
        retried = sinks if task.state == "retrying" and len(sinks) == 1 else []
        for node in _named(graph, task.why) or retried or entry:
            found.setdefault(node, Stop(level, why))
    if not collect:
        found |= dict.fromkeys(entry, Stop("stopped", "no collect task is planned"))
    if behind and not failing:
        found |= {node: Stop("late", behind) for node in entry if node not in found}
    return found or {node.id: Stop("ok") for node in graph.nodes if node.kind != "dead letters"}


def _entry(graph: FlowGraph) -> list[str]:
    """Return the journal, or else the sources that tasks read themselves."""
    journal = [node.id for node in graph.nodes if node.kind == "journal"]
    return journal or [node.id for node in graph.nodes if node.kind == "source"]


def _sources_of(graph: FlowGraph, source: str) -> list[str]:
    """Return the sources of this kind: a counter names them by kind, address and number."""
    kind = source.split(" ", 1)[0]
    nodes = [node for node in graph.nodes if node.kind == "source"]
    return [node.id for node in nodes if _component(node) == kind]


def _named(graph: FlowGraph, why: str) -> list[str]:
    """Return the parts that an error names: by place, or by component at its start, as in
    ``files: ...`` and ``the lookup table ...``."""
    parts = [node for node in graph.nodes if node.kind in PARTS]
    by_place = [
        node for node in parts if node.place and re.search(rf"(?<!\w){re.escape(node.place)}", why)
    ]
    if by_place:
        longest = max(len(node.place) for node in by_place)
        return [node.id for node in by_place if len(node.place) == longest]
    component = why.removeprefix("the ").split(" ")[0].rstrip(":")
    return [node.id for node in parts if _component(node) == component and node.kind != "branch"]


def _component(node: GraphNode) -> str:
    return node.label.split(" ", 1)[0]
