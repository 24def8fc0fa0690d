"""Where the events of a flow stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.config import parse_flow
from flumeng.control.queries.flow_graph import graph_of
from flumeng.control.queries.flow_stops import stops
from flumeng.control.queries.task_status import TaskRow

ONE = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:0"}}]
filters: [{where: "true"}]
sinks: [{http: {url: "http://h/"}}]
"""
TWO = ONE.replace("sinks: [", "sinks: [{files: {path: /lake}}, ")
TASK = TaskRow(
    flow="web",
    task="collect.0",
    kind="collect",
    node="n1",
    epoch=1,
    state="retrying",
    partitions=(),
    wanted=1,
    revision=1,
    standbys={},
    lacking=0,
    why="POST http://h/: no answer",
)


@pytest.mark.parametrize(
    ("text", "task", "kind"),
    [
        (ONE, TASK, "sink"),
        (TWO, TASK, "journal"),
        (TWO, replace(TASK, why="sinks[1].http: no answer"), "sink"),
        (ONE, replace(TASK, state="waiting", why="no node has room"), "journal"),
        (ONE, replace(TASK, state="failed", why="filters[0].where: no such column"), "filter"),
    ],
)
def test_they_stop_at_the_part_that_fails(text: str, task: TaskRow, kind: str) -> None:
    graph = graph_of(parse_flow(text))
    (node,) = stops(graph, "running", [task])
    assert graph.node(node).kind == kind
    assert stops(graph, "running", [task])[node].level == "stopped"


def test_a_well_flow_stops_nowhere() -> None:
    found = stops(graph_of(parse_flow(ONE)), "running", [replace(TASK, state="running", why="")])
    assert {stop.level for stop in found.values()} == {"ok"}
