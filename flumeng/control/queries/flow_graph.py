"""Draws the graph of a flow as text, Mermaid and Graphviz. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flumeng.config import FlowSpec
from flumeng.config.branch import Branch
from flumeng.config.component import KEEP, Component, SinkOptions
from flumeng.config.component_summary import summary
from flumeng.config.flow_names import part_name
from flumeng.config.stages import FilterStage, SinkStage
from flumeng.control.queries.counters import TaskCounts

NodeKind = Literal["source", "journal", "filter", "branch", "group", "sink", "dead letters"]
MINUTE = 60.0
KEPT = {
    "disk": "on disk",
    "spill": "on disk, synced later",
    "memory": "in memory",
    "replicated": "on disks of several nodes",
}


@dataclass(frozen=True)
class GraphNode:
    """A component. ``when``: the condition for its events; ``on_error``: a filter's option.
    ``place``: as in messages, such as ``filters[0].parse``; ``part``: the flow that runs it, if it
    is isolated."""

    id: str
    kind: NodeKind
    label: str
    when: str = ""
    on_error: str = ""
    place: str = ""
    part: str = ""


@dataclass(frozen=True)
class GraphEdge:
    source: str
    target: str
    label: str = ""
    per_second: float | None = None


@dataclass(frozen=True)
class FlowGraph:
    """A flow as a graph; ``nodes`` are in the order of its text, ``edges`` lead to later nodes."""

    flow: str
    durability: str
    delivery: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    parse_errors_per_second: float | None = None

    def behind(self, node: str) -> list[GraphEdge]:
        return [edge for edge in self.edges if edge.source == node]

    def node(self, id_: str) -> GraphNode:
        return next(node for node in self.nodes if node.id == id_)


@dataclass(frozen=True)
class Rates:
    """Events per second of all tasks of a flow in the last minute; None when unknown."""

    processed: float | None = None
    dropped: float | None = None
    parse_errors: float | None = None
    dead_letters: float | None = None

    @property
    def kept(self) -> float | None:
        if self.processed is None or self.dropped is None:
            return None
        return self.processed - self.dropped


def rates_of(counts: TaskCounts, now: float) -> Rates:
    """Return the rates that every task has reported. ``now``: seconds since the epoch."""
    if counts.silent or not counts.rows:
        return Rates()

    def rate(name: str) -> float | None:
        total = 0.0
        for row in counts.rows:
            counted = row.counts.get(name)
            if counted is None:
                return None
            total += counted["1m"] / min(MINUTE, max(now - row.since, 1.0))
        return total

    return Rates(rate("processed"), rate("dropped"), rate("parse_errors"), rate("dead_letters"))


def graph_of(spec: FlowSpec, rates: Rates | None = None) -> FlowGraph:
    building = _Building(spec, rates or Rates())
    building.build()
    return FlowGraph(
        spec.flow,
        spec.durability,
        spec.delivery,
        tuple(building.nodes),
        tuple(building.edges),
        building.rates.parse_errors,
    )


class _Building:
    def __init__(self, spec: FlowSpec, rates: Rates) -> None:
        self.spec = spec
        self.rates = rates
        self.nodes: list[GraphNode] = []
        self.edges: list[GraphEdge] = []
        self.failing: list[str] = []

    def build(self) -> None:
        self._stages(list(self._sources()))
        if self.spec.dead_letters is None:
            return
        letters = self._add("dead letters", summary(self.spec.dead_letters), place="dead_letters")
        for sink in [node for node in self.nodes if node.kind == "sink"]:
            self.edges.append(GraphEdge(sink.id, letters, "refused"))
        self.edges += [GraphEdge(failing, letters, "failed") for failing in self.failing]

    def _sources(self) -> Iterator[str]:
        journaled: list[str] = []
        for part in self.spec.sources:
            filtered = bool(part.options.filtered_by)
            label = summary(part) + (" after filters" if filtered else "")
            node = self._add("source", label, place="sources")
            if part in self.spec.pinned:
                journaled.append(node)
            else:
                yield node
        if journaled:
            kafka = self.spec.journal.kafka
            kept = KEPT.get(self.spec.durability, "")
            label = f"journal {kept}" if kafka is None else f"journal in {kafka.location}"
            journal = self._add("journal", label, place="sources")
            self._join(journaled, journal)
            yield journal

    def _stages(self, read: list[str]) -> None:
        nodes: dict[int | None, list[str]] = {None: read}
        for stage in self.spec.stages:
            before = nodes[stage.behind]
            names = stage.branch.split("/") if stage.branch else []
            if isinstance(stage, SinkStage):
                kept = self.rates.kept if self.spec.filters else self.rates.processed
                rate = None if names or stage.part.isolated else kept
                part = self._part(stage.part, *names, stage.part.name)
                self._sink(stage.part, before, rate, stage.place, part)
                continue
            if isinstance(stage, FilterStage):
                on_error = "" if stage.part.on_error == KEEP else stage.part.on_error
                label, when = summary(stage.part), stage.part.when or ""
                node = self._add("filter", label, when=when, on_error=on_error, place=stage.place)
                if stage.makes_dead_letters:
                    self.failing.append(node)
                self._join(before, node, self.rates.processed if stage.behind is None else None)
            else:
                other = "no other branch takes it" if stage.part.otherwise else ""
                part = self._part(stage.part, *names)
                named = stage.part.name + _alone(part)
                when = stage.part.when or other
                node = self._add("branch", named, when=when, place=stage.place, part=part)
                self._join(before, node)
            nodes[stage.number] = [node]

    def _part(self, part: Component[SinkOptions] | Branch, *names: str) -> str:
        return part_name(self.spec.flow, *names) if part.isolated else ""

    def _sink(
        self,
        part: Component[SinkOptions],
        before: Sequence[str],
        rate: float | None,
        place: str,
        isolated: str = "",
    ) -> None:
        inner = part.options.members
        if not inner:
            label = self._promising(part) + _alone(isolated)
            self._join(before, self._add("sink", label, place=place, part=isolated), rate)
            return
        group = self._add("group", part.name + _alone(isolated), place=place, part=isolated)
        self._join(before, group, rate)
        for member in inner:
            self._sink(member, [group], None, place)

    def _promising(self, part: Component[SinkOptions]) -> str:
        """Return the sink's label, with its guarantee in an exactly-once flow."""
        way = part.options.exactly_once if self.spec.delivery == "exactly-once" else None
        return f"{summary(part)} ({way})" if way else summary(part)

    def _add(
        self,
        kind: NodeKind,
        label: str,
        *,
        when: str = "",
        on_error: str = "",
        place: str = "",
        part: str = "",
    ) -> str:
        id_ = f"n{len(self.nodes)}"
        self.nodes.append(GraphNode(id_, kind, label, when, on_error, place, part))
        return id_

    def _join(self, sources: Sequence[str], target: str, per_second: float | None = None) -> None:
        rate = per_second if len(sources) == 1 else None
        self.edges += [GraphEdge(source, target, per_second=rate) for source in sources]


def _alone(part: str) -> str:
    return f" (isolated: flow {part})" if part else ""


MERMAID_SHAPES = {
    "source": '(["{}"])',
    "journal": '[("{}")]',
    "filter": '["{}"]',
    "branch": '{{"{}"}}',
    "group": '[["{}"]]',
    "sink": '[/"{}"/]',
    "dead letters": '[/"{}"/]',
}
DOT_SHAPES = {
    "source": "oval",
    "journal": "cylinder",
    "filter": "box",
    "branch": "diamond",
    "group": "hexagon",
    "sink": "folder",
    "dead letters": "folder",
}


def text(graph: FlowGraph) -> str:
    """Return the graph as lines from the sources down, indented after branches and groups."""
    return "\n".join([_title(graph), *_text_lines(graph)])


def mermaid(graph: FlowGraph) -> str:
    lines = ["---", f"title: {json.dumps(_title(graph))}", "---", "flowchart TD"]
    for node in graph.nodes:
        label = _escaped(_labelled(node), {'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;"})
        lines.append(f"  {node.id}{MERMAID_SHAPES[node.kind].replace('{}', label)}")
    for edge in graph.edges:
        label = f'|"{_edge_label(edge)}"|' if _edge_label(edge) else ""
        lines.append(f"  {edge.source} -->{label} {edge.target}")
    return "\n".join(lines)


def dot(graph: FlowGraph) -> str:
    lines = [f"digraph {_quoted(graph.flow)} {{", f"  label={_quoted(_title(graph))};"]
    for node in graph.nodes:
        shape = DOT_SHAPES[node.kind]
        lines.append(f"  {node.id} [shape={shape}, label={_quoted(_labelled(node))}];")
    for edge in graph.edges:
        label = f" [label={_quoted(_edge_label(edge))}]" if _edge_label(edge) else ""
        lines.append(f"  {edge.source} -> {edge.target}{label};")
    return "\n".join([*lines, "}"])


FORMATS: Mapping[str, Callable[[FlowGraph], str]] = {"text": text, "mermaid": mermaid, "dot": dot}


def _title(graph: FlowGraph) -> str:
    title = f"flow {graph.flow}: durability {graph.durability}, delivery {graph.delivery}"
    if graph.parse_errors_per_second:
        title += f", {_rate(graph.parse_errors_per_second)} with parse_error"
    return title


def _text_lines(graph: FlowGraph) -> Iterator[str]:
    targets = {edge.target for edge in graph.edges}
    sources = [node for node in graph.nodes if node.id not in targets]
    for node in sources:
        yield f"  {_described(node)}"
    journal = next((node for node in graph.nodes if node.kind == "journal"), None)
    if journal is not None:
        yield f"  {_described(journal)}"
    first = sources[-1] if journal is None else journal
    yield from _behind(graph, first, 1)
    for node in graph.nodes:
        if node.kind == "dead letters":
            yield f"  dead letters: {node.label}"


def _behind(graph: FlowGraph, node: GraphNode, depth: int) -> Iterator[str]:
    for edge in graph.behind(node.id):
        following = graph.node(edge.target)
        if following.kind == "dead letters":
            continue
        rate = f"  [{_edge_label(edge)}]" if _edge_label(edge) else ""
        yield f"{'  ' * depth}-> {_described(following)}{rate}"
        yield from _behind(graph, following, depth + (following.kind in ("branch", "group")))


def _described(node: GraphNode) -> str:
    kind = f"{node.kind} " if node.kind in ("source", "sink", "branch", "group") else ""
    return f"{kind}{node.label}{_condition(node)}"


def _labelled(node: GraphNode) -> str:
    return f"{node.label}{_condition(node)}"


def _condition(node: GraphNode) -> str:
    condition = f" when {node.when}" if node.when else ""
    return f"{condition}, on error {node.on_error}" if node.on_error else condition


def _edge_label(edge: GraphEdge) -> str:
    return edge.label if edge.per_second is None else _rate(edge.per_second)


def _rate(per_second: float) -> str:
    return f"{per_second:.{0 if per_second >= 10 else 1}f} events/s"


def _quoted(label: str) -> str:
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _escaped(label: str, entities: Mapping[str, str]) -> str:
    return "".join(entities.get(letter, letter) for letter in label.replace("\n", " "))
