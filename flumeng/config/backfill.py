"""The text of a backfill: that of its flow, which reads a part of what lies there, and ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import yaml

from flumeng.config import FlowSpec, document, nodes, parse_flow
from flumeng.config.component import Component, OffsetBounds, SourceOptions, TimeBounds
from flumeng.platform.errors import UserError

Bounds = type[OffsetBounds] | type[TimeBounds]
BoundsT = TypeVar("BoundsT", OffsetBounds, TimeBounds)


def bounded_by(spec: FlowSpec, bounds: Bounds) -> list[Component[SourceOptions]]:
    """The sources of which a backfill can read a part that is bounded so."""
    return [one for one in spec.sources if isinstance(one.options.bounds, bounds)]


def require_offsets(flow: str, spec: FlowSpec) -> None:
    """Raises ``UserError`` for a flow none of whose sources keeps events by offsets of its own."""
    if not bounded_by(spec, OffsetBounds):
        raise UserError(
            f"flow {flow} reads its journals, which keep no more than `journal.retain_seconds` "
            "says, and only for it: pause it and deliver what they keep again with "
            f"`flumeng flow reset {flow}`"
        )


def offsets_text(text: str, name: str, bounds: Mapping[str, tuple[int, int]]) -> str:
    """The flow of this ``text`` as ``name``, with those of its sources only that are bounded by
    offsets, which read what ``bounds`` has of their partitions, such as ``orders.3``: the first
    offset, and the one before which it ends. Comments are lost.

    Raises ``SpecError`` for a text that is no flow's.
    """
    root, sources = _with_sources(text, name, OffsetBounds)
    for known, options in sources:
        _remove(options, (known.start, known.end, *known.replaced))
        for number, key in enumerate((known.start, known.end)):
            pairs = [(nodes.text(one), nodes.number(ends[number])) for one, ends in bounds.items()]
            nodes.put(options, key, nodes.mapping(pairs))
    return str(yaml.serialize(root))


def times_text(text: str, name: str, paths: Collection[str], start: str, end: str) -> str:
    """The flow of this ``text`` as ``name``, with those of its sources only that are bounded by
    time, which read what was written from ``start`` (always, when that is empty) until before
    ``end``, and leave it where it is; at other ``paths`` when there are any. Raises as above."""
    root, sources = _with_sources(text, name, TimeBounds)
    for known, options in sources:
        _remove(options, known.replaced)
        if paths:
            nodes.put(options, known.paths, nodes.listed(map(nodes.text, paths)))
        if start:
            nodes.put(options, known.start, nodes.text(start))
        nodes.put(options, known.end, nodes.text(end))
    return str(yaml.serialize(root))


def _with_sources(
    text: str, name: str, kind: type[BoundsT]
) -> tuple[yaml.Node, list[tuple[BoundsT, yaml.Node]]]:
    """The flow as ``name``, and the bounds of those of its sources that it keeps, with their
    options."""
    sources = parse_flow(text).sources
    root = document.compose(text)
    nodes.put(root, "flow", nodes.text(name))
    listed = document.items(root)["sources"]
    kept = [
        (item, part.name, part.options.bounds)
        for item, part in zip(listed.value, sources, strict=True)
        if isinstance(part.options.bounds, kind)
    ]
    listed.value = [item for item, _, _ in kept]
    return root, [(bounds, document.items(item)[part]) for item, part, bounds in kept]


def _remove(options: yaml.Node, names: Collection[str]) -> None:
    options.value = [pair for pair in options.value if pair[0].value not in names]
