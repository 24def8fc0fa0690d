"""The graph of a flow's sources, filters, branches and sinks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flumeng.config import FlowSpec
from flumeng.config.branch import Branch
from flumeng.config.component import KEEP, Component, SinkOptions
from flumeng.config.flow_names import part_name
from flumeng.config.stages import FilterStage, SinkStage
from flumeng.config.summary import summary
from flumeng.control.queries.task_counts import TaskCounts

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
    """``when``: the condition for an event to get there; ``on_error``: what a filter does with
    events that it cannot process."""

    id: str
    kind: NodeKind
    label: str
    when: str = ""
    on_error: str = ""


@dataclass(frozen=True)
class GraphEdge:
    """``per_second``: events per second, if known."""

    source: str
    target: str
    label: str = ""
    per_second: float | None = None


@dataclass(frozen=True)
class FlowGraph:
    """``nodes`` are in the order of the flow's text; ``edges`` lead from earlier to later ones."""

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
    """Events per second of all tasks of a flow in the last minute; None: unknown."""

    processed: float | None = None
    dropped: float | None = None
    parse_errors: float | None = None
    dead_letters: float | None = None

    @property
    def kept(self) -> float | None:
        """By the filters."""
        if self.processed is None or self.dropped is None:
            return None
        return self.processed - self.dropped


def rates_of(counts: TaskCounts, now: float) -> Rates:
    """``now``: seconds since the epoch. A rate is known when every task has reported it."""
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
        letters = self._add("dead letters", summary(self.spec.dead_letters))
        for sink in [node for node in self.nodes if node.kind == "sink"]:
            self.edges.append(GraphEdge(sink.id, letters, "refused"))
        self.edges += [GraphEdge(failing, letters, "failed") for failing in self.failing]

    def _sources(self) -> Iterator[str]:
        """The nodes from which collect tasks read."""
        journaled: list[str] = []
        for part in self.spec.sources:
            options = part.options
            filtered = options.upstream is not None and options.upstream.filters
            node = self._add("source", summary(part) + (" after filters" if filtered else ""))
            if part in self.spec.pinned:
                journaled.append(node)
            else:
                yield node
        if journaled:
            kafka = self.spec.journal.kafka
            kept = KEPT.get(self.spec.durability, "")
            label = f"journal {kept}" if kafka is None else f"journal in {kafka.place}"
            journal = self._add("journal", label)
            self._join(journaled, journal)
            yield journal

    def _stages(self, read: list[str]) -> None:
        """The filters, branches and sinks behind the nodes ``read``."""
        nodes: dict[int | None, list[str]] = {None: read}
        for stage in self.spec.stages:
            before = nodes[stage.behind]
            names = stage.branch.split("/") if stage.branch else []
            if isinstance(stage, SinkStage):
                kept = self.rates.kept if self.spec.filters else self.rates.processed
                rate = None if names or stage.part.isolated else kept
                self._sink(
                    stage.part, before, rate, self._alone(stage.part, *names, stage.part.name)
                )
                continue
            if isinstance(stage, FilterStage):
                on_error = "" if stage.part.on_error == KEEP else stage.part.on_error
                node = self._add("filter", summary(stage.part), stage.part.when or "", on_error)
                if stage.makes_letters:
                    self.failing.append(node)
                self._join(before, node, self.rates.processed if stage.behind is None else None)
            else:
                other = "no other branch takes it" if stage.part.otherwise else ""
                named = stage.part.name + self._alone(stage.part, *names)
                node = self._add("branch", named, stage.part.when or other)
                self._join(before, node)
            nodes[stage.number] = [node]

    def _alone(self, part: Component[SinkOptions] | Branch, *names: str) -> str:
        return f" (isolated: flow {part_name(self.spec.flow, *names)})" if part.isolated else ""

    def _sink(
        self,
        part: Component[SinkOptions],
        before: Sequence[str],
        rate: float | None,
        isolated: str = "",
    ) -> None:
        inner = part.options.members
        if not inner:
            self._join(before, self._add("sink", self._promising(part) + isolated), rate)
            return
        group = self._add("group", part.name + isolated)
        self._join(before, group, rate)
        for member in inner:
            self._sink(member, [group], None)

    def _promising(self, part: Component[SinkOptions]) -> str:
        """With its own guarantee, where that exceeds the flow's."""
        way = part.options.exactly_once if self.spec.delivery == "exactly-once" else None
        return f"{summary(part)} ({way})" if way else summary(part)

    def _add(self, kind: NodeKind, label: str, when: str = "", on_error: str = "") -> str:
        id_ = f"n{len(self.nodes)}"
        self.nodes.append(GraphNode(id_, kind, label, when, on_error))
        return id_

    def _join(self, sources: Sequence[str], target: str, per_second: float | None = None) -> None:
        rate = per_second if len(sources) == 1 else None
        self.edges += [GraphEdge(source, target, per_second=rate) for source in sources]
