"""The page of a flow: its state and the advice, its graph, its lag, sinks, and worst partitions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.config import SpecError, parse_written
from flumeng.console.drawing import graph as drawing
from flumeng.console.drawing.chart import chart, sampled
from flumeng.console.drawing.graph import Arrow, Box
from flumeng.console.history import STEP_SECONDS
from flumeng.console.pages import rendering
from flumeng.console.pages.flow_seen import (
    Asked,
    FlowSeen,
    asked,
    offers,
    page,
    path_of,
    see,
    state_since,
)
from flumeng.control.queries import flow_graph
from flumeng.control.queries.flow_graph import FlowGraph, GraphNode, graph_of, rates_of
from flumeng.control.queries.flow_rates import FlowRates
from flumeng.control.queries.flow_stops import Stop, stops
from flumeng.control.queries.task_status import TaskRow
from zkschema.records import COLLECT

WORST_SHOWN = 10
TASKS_SHOWN = 20
TABLE_STEP = 30
"""Samples between the rows of the chart's table: five minutes."""


@dataclass(frozen=True)
class SinkRow:
    """A sink. ``tasks``: those that report an error of it. ``since``: of the first of them, in
    seconds since the epoch, or None."""

    place: str
    label: str
    stop: Stop | None
    tasks: Sequence[TaskRow]
    since: float | None


@dataclass(frozen=True)
class Drawn:
    """A flow's graph: as SVG, as text, and its sinks. ``folded``: boxes that stand for several."""

    svg: str
    text: str
    sinks: Sequence[SinkRow]
    folded: bool


def drawn(seen: FlowSeen, answers: Asked, rates: FlowRates | None, now: float) -> Drawn | str:
    """Return the graph, or why there is none."""
    if seen.detail is None:
        return "its text cannot be read, so there is no graph"
    try:
        graph = graph_of(parse_written(seen.detail.text), rates_of(answers.counts, now))
    except SpecError as error:
        return f"its text is not valid, so there is no graph: {error}"
    graph = _with_incoming(graph, rates)
    behind = ""
    if answers.lag and answers.lag.trend == "growing":
        behind = f"{answers.lag.events} events wait, and more arrive than are delivered"
    found = stops(graph, seen.state, seen.tasks, answers.sources, behind)
    boxes = [_box(seen.name, node, found.get(node.id), rates) for node in graph.nodes]
    arrows = [_arrow(seen.name, graph, edge) for edge in graph.edges]
    small, lines = drawing.folded(boxes, arrows)
    layout = drawing.laid_out(small, lines)
    return Drawn(
        drawing.svg(layout, f"The graph of flow {seen.name}; the same as text follows"),
        _as_text(graph, found),
        [*_sinks(seen, graph, found)],
        len(small) < len(boxes),
    )


def _with_incoming(graph: FlowGraph, rates: FlowRates | None) -> FlowGraph:
    """Return the graph with the rate of accepted events behind its only source."""
    sources = [node.id for node in graph.nodes if node.kind == "source"]
    if rates is None or len(sources) != 1:
        return graph
    edges = tuple(
        replace(edge, per_second=rates.incoming)
        if edge.source == sources[0] and edge.per_second is None
        else edge
        for edge in graph.edges
    )
    return replace(graph, edges=edges)


def tap_step(node: GraphNode) -> str | None:
    """Return the step of a tap after a part of the graph; None where there is none."""
    if node.kind in ("source", "journal", "filter", "branch"):
        return node.place
    if node.kind in ("sink", "group"):
        return node.place.rpartition("sinks[")[0] + "sinks"
    return None


def _box(flow: str, node: GraphNode, stop: Stop | None, rates: FlowRates | None) -> Box:
    note = f"when {node.when}" if node.when else ""
    if node.on_error:
        note += f" on error {node.on_error}"
    step = tap_step(node)
    href = path_of(flow, "tap", at=step) if step else path_of(flow, "dead")
    if node.part:
        href = path_of(node.part)
    if node.kind == "dead letters" and rates is not None and rates.dead_letters:
        stop = Stop("late", f"{rendering.number(rates.dead_letters)} dead letters a second")
    level, why = (stop.level, stop.why) if stop else ("", "")
    return Box(node.id, node.kind, node.label, note.strip(), level, why, href)


def _arrow(flow: str, graph: FlowGraph, edge: flow_graph.GraphEdge) -> Arrow:
    label = edge.label
    if edge.per_second is not None:
        label = f"{rendering.number(edge.per_second)}/s"
    step = tap_step(graph.node(edge.source)) if not edge.label else None
    href = path_of(flow, "tap", at=step) if step else ""
    return Arrow(edge.source, edge.target, label, href)


def _as_text(graph: FlowGraph, found: Mapping[str, Stop]) -> str:
    lines = [flow_graph.text(graph)]
    for node in graph.nodes:
        stop = found.get(node.id)
        if stop is not None and drawing.WORDS[stop.level]:
            lines.append(f"{drawing.WORDS[stop.level]}: {node.kind} {node.label}: {stop.why}")
    return "\n".join(lines)


def _sinks(seen: FlowSeen, graph: FlowGraph, found: Mapping[str, Stop]) -> Iterator[SinkRow]:
    for node in graph.nodes:
        if node.kind not in ("sink", "dead letters"):
            continue
        stop = found.get(node.id)
        ill = stop if stop is not None and stop.level != "ok" else None
        tasks = [task for task in seen.tasks if task.kind == COLLECT and task.why]
        failing = [task for task in tasks if ill and _reports(task, node)]
        starts = [state_since(seen.timeline, task) for task in failing]
        since = min((start for start in starts if start is not None), default=None)
        yield SinkRow(node.place, node.label, stop, failing, since)


def _reports(task: TaskRow, node: GraphNode) -> bool:
    component = re.escape(node.label.split(" ", 1)[0])
    return bool(node.place and node.place in task.why) or bool(re.match(rf"{component}:", task.why))


def show(request: Request) -> Response:
    console = request.app.state.console
    seen = see(request)
    answers = asked(console, seen)
    picture = console.pictures.latest
    rates = picture.rates.get(seen.name)
    values = console.pictures.history.of(f"flow {seen.name} lag")
    lag = answers.lag
    if lag is not None:
        console.lags.look(seen.name, lag)
    return page(
        request,
        "flow.html",
        seen,
        "",
        answers=answers,
        lag=lag,
        rates=rates,
        drawn=drawn(seen, answers, rates, console.clock()),
        offers=offers(request, seen),
        chart=chart(values, STEP_SECONDS, f"Lag of {seen.name} over the last hour", "events"),
        samples=[
            (after * STEP_SECONDS, value)
            for after, value in sampled(values, TABLE_STEP)
            if value is not None
        ],
        worst=lag.partitions[:WORST_SHOWN] if lag else (),
        tasks=seen.tasks[:TASKS_SHOWN],
    )


ROUTES = [Route("/flows/{flow}", show), Route("/flows/{flow}/", show)]
