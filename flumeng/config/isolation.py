"""Isolated sinks and branches, *parts*: each runs as a flow of its own, derived from its flow.

The flow of a part reads the same input under its own cursor. Its text has only the path through the
tree that leads to the part, with the filters on that path. The whole flow runs without its parts.

1. An event goes to the same sinks as without isolation: a branch ``otherwise`` without its siblings
   gets their negated conditions.
2. A filter on the path runs in the flow too, which writes its dead letters; the part drops those
   events. So no segment is left empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from flumeng.config import document
from flumeng.config.branch import Branch, Segment
from flumeng.config.component import DEAD_LETTER, DROP
from flumeng.config.flow import FlowSpec
from flumeng.config.flow_names import check_flow_name, part_name

ISOLATED = "isolated"


@dataclass(frozen=True)
class Part:
    """An isolated sink or branch. ``flow``: the name of its own flow. ``steps``: the numbers of the
    branches that lead to it. ``sink``: the number of the sink; None for a branch."""

    flow: str
    steps: tuple[int, ...] = ()
    sink: int | None = None

    @property
    def path(self) -> str:
        way = ".".join(f"branches[{number}]" for number in self.steps)
        if self.sink is None:
            return way
        return f"{way}.sinks[{self.sink}]" if way else f"sinks[{self.sink}]"


def parts(spec: FlowSpec) -> tuple[Part, ...]:
    """Return the isolated parts of a flow as written, depth first."""
    return tuple(_parts(spec, (spec.flow,), ()))


def _parts(segment: Segment, words: tuple[str, ...], steps: tuple[int, ...]) -> Iterator[Part]:
    for number, sink in enumerate(segment.sinks):
        if sink.isolated:
            yield Part(part_name(*words, sink.name), steps, number)
    for number, branch in enumerate(segment.branches):
        inner = (*words, branch.name), (*steps, number)
        if branch.isolated:
            yield Part(part_name(*inner[0]), inner[1])
        yield from _parts(branch, *inner)


def problems(spec: FlowSpec) -> Iterator[tuple[str, str]]:
    isolated = parts(spec)
    if not isolated:
        return
    taken: dict[str, Part] = {}
    for part in isolated:
        where = f"{part.path}.{ISOLATED}"
        if part.flow in taken:
            both = f"this part and {taken[part.flow].path} would both be named {part.flow}"
            yield where, f"{both}: put it into a branch with a name of its own"
        taken.setdefault(part.flow, part)
        try:
            check_flow_name(part.flow)
        except ValueError as error:
            yield where, f"this part would be named {part.flow}: {error}"
    for path, segment in _segments(spec, ""):
        if all(sink.isolated for sink in segment.sinks) and all(
            branch.isolated for branch in segment.branches
        ):
            yield path or f"{isolated[0].path}.{ISOLATED}", _left_empty(path)
    if not all(part.options.upstream for part in spec.partitioned):
        yield (
            f"{isolated[0].path}.{ISOLATED}",
            "every flow reads Kafka at its own pace: make another flow that reads the same topics "
            "instead",
        )
    if spec.rollout is not None:
        yield (
            "rollout",
            "a rollout would write events of a newly isolated part twice, by tasks of both "
            "revisions: leave rollout out",
        )


def _left_empty(path: str) -> str:
    if not path:
        return "all sinks and branches are isolated, and one has to stay: leave `isolated` out"
    return "all sinks and branches in it are isolated: set `isolated` for the branch alone"


def _segments(segment: Segment, path: str) -> Iterator[tuple[str, Segment]]:
    yield path, segment
    for number, branch in enumerate(segment.branches):
        inner = f"{path}.branches[{number}]" if path else f"branches[{number}]"
        yield from _segments(branch, inner)


def kept_text(root: yaml.Node, spec: FlowSpec) -> str:
    """Return the text of the flow without its isolated parts. ``spec``: the flow in ``root``."""
    return str(yaml.serialize(_kept(root, spec)))


def part_text(root: yaml.Node, spec: FlowSpec, part: Part) -> str:
    tree = _way(root, spec, part.steps, part.sink)
    replaced: dict[str, yaml.Node] = {"flow": document.scalar(part.flow)}
    if not any(source.options.upstream for source in spec.sources):
        named = document.mapping_node([(document.scalar("name"), document.scalar(spec.flow))])
        replaced["sources"] = document.list_node(
            [document.mapping_node([(document.scalar("flow"), named)])]
        )
    return str(yaml.serialize(_with(tree, replaced)))


def together(node: yaml.Node) -> yaml.Node:
    """Return a flow or branch in which no sink or branch is isolated."""
    entries = document.items(node)
    inner = {"sinks": _plain, "branches": lambda branch: _plain(together(branch))}
    return _with(
        node,
        {
            key: document.list_node(map(change, entries[key].value))
            for key, change in inner.items()
            if key in entries
        },
    )


def _way(node: yaml.Node, segment: Segment, steps: Sequence[int], sink: int | None) -> yaml.Node:
    """Return a segment with only the isolated part and the path to it."""
    if not steps and sink is None:
        return _kept(node, segment)
    if not steps:
        assert sink is not None
        end = {"sinks": _some(node, "sinks", [sink], _plain), "branches": None}
    else:
        number, *rest = steps
        inner = _inner(node, "branches", number)
        branch = segment.branches[number]
        way = _way(inner, branch, rest, sink)
        end = {
            "sinks": None,
            "branches": document.list_node([_alone(way, branch, segment.branches, [branch])]),
        }
    filters = document.items(node).get("filters")
    shared = () if filters is None else map(without_dead_letters, filters.value)
    return _with(
        node, {**end, "filters": document.list_node(shared) if filters else None, ISOLATED: None}
    )


def _kept(node: yaml.Node, segment: Segment) -> yaml.Node:
    sinks = [number for number, sink in enumerate(segment.sinks) if not sink.isolated]
    stay = [branch for branch in segment.branches if not branch.isolated]
    branches = [
        _alone(_kept(inner, branch), branch, segment.branches, stay)
        for number, branch in enumerate(segment.branches)
        for inner in [_inner(node, "branches", number)]
        if not branch.isolated
    ]
    return _with(
        node,
        {
            "sinks": _some(node, "sinks", sinks, lambda sink: sink) if sinks else None,
            "branches": document.list_node(branches) if branches else None,
            ISOLATED: None,
        },
    )


def _alone(
    node: yaml.Node, branch: Branch, siblings: Sequence[Branch], stay: Sequence[Branch]
) -> yaml.Node:
    """Return a branch next to only those siblings that ``stay``, with the same events as before."""
    if not branch.otherwise or len(stay) == len(siblings):
        return node
    others = [sibling.when for sibling in siblings if sibling.when is not None]
    return _with(
        node, {"otherwise": None, "when": document.scalar(none_of(others)) if others else None}
    )


def none_of(conditions: Sequence[str]) -> str:
    """Return a condition in Spark SQL that is true when all given ones are false or null."""
    return " AND ".join(f"(NOT ({c}) OR ({c}) IS NULL)" for c in map(str.strip, conditions))


def without_dead_letters(entry: yaml.Node) -> yaml.Node:
    """Return a filter that drops its dead letters, which another flow writes; others unchanged."""
    on_error = document.items(entry).get("on_error")
    if on_error is None or on_error.value != DEAD_LETTER:
        return entry
    return _with(entry, {"on_error": document.scalar(DROP)})


def _plain(entry: yaml.Node) -> yaml.Node:
    return _with(entry, {ISOLATED: None})


def _inner(node: yaml.Node, key: str, number: int) -> yaml.Node:
    entry: yaml.Node = document.items(node)[key].value[number]
    return entry


def _some(
    node: yaml.Node, key: str, numbers: Sequence[int], change: Callable[[yaml.Node], yaml.Node]
) -> yaml.Node:
    return document.list_node([change(_inner(node, key, number)) for number in numbers])


def _with(mapping: yaml.Node, values: Mapping[str, yaml.Node | None]) -> yaml.Node:
    """Return a copy with entries replaced, added, or removed (None). A name alone is unchanged."""
    if not isinstance(mapping, yaml.MappingNode):
        return mapping
    pairs = {str(key.value): (key, value) for key, value in mapping.value}
    for name, value in values.items():
        if value is None:
            pairs.pop(name, None)
        else:
            pairs[name] = (pairs[name][0] if name in pairs else document.scalar(name), value)
    return yaml.MappingNode(
        mapping.tag,
        list(pairs.values()),
        mapping.start_mark,
        mapping.end_mark,
        flow_style=mapping.flow_style,
    )
