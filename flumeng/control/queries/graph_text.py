"""The graph of a flow as text, as Mermaid and as Graphviz."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from flumeng.control.queries.flow_graph import FlowGraph, GraphEdge, GraphNode

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
    """Lines from the sources down, indented behind branches and groups."""
    return "\n".join([_title(graph), *_text_lines(graph)])


def mermaid(graph: FlowGraph) -> str:
    lines = ["---", f"title: {json.dumps(_title(graph))}", "---", "flowchart TD"]
    for node in graph.nodes:
        label = _escaped(_labelled(node), {'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;"})
        lines.append(f"  {node.id}{MERMAID_SHAPES[node.kind].replace('{}', label)}")
    for edge in graph.edges:
        said = f'|"{_said(edge)}"|' if _said(edge) else ""
        lines.append(f"  {edge.source} -->{said} {edge.target}")
    return "\n".join(lines)


def dot(graph: FlowGraph) -> str:
    lines = [f"digraph {_quoted(graph.flow)} {{", f"  label={_quoted(_title(graph))};"]
    for node in graph.nodes:
        shape = DOT_SHAPES[node.kind]
        lines.append(f"  {node.id} [shape={shape}, label={_quoted(_labelled(node))}];")
    for edge in graph.edges:
        said = f" [label={_quoted(_said(edge))}]" if _said(edge) else ""
        lines.append(f"  {edge.source} -> {edge.target}{said};")
    return "\n".join([*lines, "}"])


FORMATS: Mapping[str, Callable[[FlowGraph], str]] = {"text": text, "mermaid": mermaid, "dot": dot}


def _title(graph: FlowGraph) -> str:
    said = f"flow {graph.flow}: durability {graph.durability}, delivery {graph.delivery}"
    if graph.parse_errors_per_second:
        said += f", {_rate(graph.parse_errors_per_second)} with parse_error"
    return said


def _text_lines(graph: FlowGraph) -> Iterator[str]:
    targets = {edge.target for edge in graph.edges}
    sources = [node for node in graph.nodes if node.id not in targets]
    for node in sources:
        yield f"  {_told(node)}"
    journal = next((node for node in graph.nodes if node.kind == "journal"), None)
    if journal is not None:
        yield f"  {_told(journal)}"
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
        rate = f"  [{_said(edge)}]" if _said(edge) else ""
        yield f"{'  ' * depth}-> {_told(following)}{rate}"
        yield from _behind(graph, following, depth + (following.kind in ("branch", "group")))


def _told(node: GraphNode) -> str:
    kind = f"{node.kind} " if node.kind in ("source", "sink", "branch", "group") else ""
    return f"{kind}{node.label}{_condition(node)}"


def _labelled(node: GraphNode) -> str:
    return f"{node.label}{_condition(node)}"


def _condition(node: GraphNode) -> str:
    condition = f" when {node.when}" if node.when else ""
    return f"{condition}, on error {node.on_error}" if node.on_error else condition


def _said(edge: GraphEdge) -> str:
    return edge.label if edge.per_second is None else _rate(edge.per_second)


def _rate(per_second: float) -> str:
    return f"{per_second:.{0 if per_second >= 10 else 1}f} events/s"


def _quoted(label: str) -> str:
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _escaped(label: str, entities: Mapping[str, str]) -> str:
    return "".join(entities.get(letter, letter) for letter in label.replace("\n", " "))
