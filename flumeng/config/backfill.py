"""The text of a backfill: that of its flow, which reads a part of what lies there, and ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import yaml

from flumeng.config import FlowSpec, document, nodes, parse_flow
from flumeng.config.kafka_source import KafkaSource
from flumeng.config.objects_source import ObjectsSource
from flumeng.platform.errors import UserError

KAFKA, OBJECTS = "kafka", "objects"
BOUNDS = ("start_offsets", "end_offsets", "start_from")


AFTER = ("after", "move_to", "written_from", "written_before")


def reads(spec: FlowSpec, source: type[Any]) -> bool:
    return any(isinstance(one.options, source) for one in spec.sources)


def require_kafka(flow: str, spec: FlowSpec) -> None:
    """Raises ``UserError`` for a flow that reads nothing of Kafka's."""
    if not reads(spec, KafkaSource):
        raise UserError(
            f"flow {flow} reads its journals, which keep no more than `journal.retain_seconds` "
            "says, and only for it: pause it and deliver what they keep again with "
            f"`flumeng flow reset {flow}`"
        )


def backfill_text(text: str, name: str, bounds: Mapping[str, tuple[int, int]]) -> str:
    """The flow of this ``text`` as ``name``, with its source ``kafka`` only, which reads what
    ``bounds`` has of its partitions, such as ``orders.3``. Comments are lost.

    Raises ``SpecError`` for a text that is no flow's.
    """
    root, sources = _with_source(text, name, KafkaSource)
    for item in sources:
        _bound(document.items(item)[KAFKA], bounds)
    return str(yaml.serialize(root))


def objects_text(text: str, name: str, paths: Collection[str], start: str, end: str) -> str:
    """The flow of this ``text`` as ``name``, with its source ``objects`` only, which reads what was
    written from ``start`` (always, when that is empty) until before ``end``, and leaves it where it
    is; at other ``paths`` when there are any. Raises as above."""
    root, sources = _with_source(text, name, ObjectsSource)
    for item in sources:
        options = document.items(item)[OBJECTS]
        options.value = [pair for pair in options.value if pair[0].value not in AFTER]
        if paths:
            nodes.put(options, "paths", nodes.listed(map(nodes.text, paths)))
        if start:
            nodes.put(options, "written_from", nodes.text(start))
        nodes.put(options, "written_before", nodes.text(end))
    return str(yaml.serialize(root))


def _with_source(text: str, name: str, source: type[Any]) -> tuple[yaml.Node, list[yaml.Node]]:
    """The flow as ``name``, and those of its sources that it keeps."""
    sources = parse_flow(text).sources
    root = document.compose(text)
    nodes.put(root, "flow", nodes.text(name))
    listed = document.items(root)["sources"]
    listed.value = [
        item
        for item, known in zip(listed.value, sources, strict=True)
        if isinstance(known.options, source)
    ]
    return root, listed.value


def _bound(options: yaml.Node, bounds: Mapping[str, tuple[int, int]]) -> None:
    options.value = [pair for pair in options.value if pair[0].value not in BOUNDS]
    for number, key in enumerate(("start_offsets", "end_offsets")):
        pairs = [(nodes.text(label), nodes.number(ends[number])) for label, ends in bounds.items()]
        nodes.put(options, key, nodes.mapping(pairs))
