"""The text of a backfill: that of its flow, which reads a part of Kafka's partitions and ends."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from flumeng.errors import UserError
from flumeng.spec import FlowSpec, document, nodes, parse_flow
from flumeng.spec.kafka_source import KafkaSource

SOURCE = "kafka"
BOUNDS = ("start_offsets", "end_offsets", "start_from")


def require_kafka(flow: str, spec: FlowSpec) -> None:
    """Raises ``UserError`` for a flow that reads nothing of Kafka's."""
    if not any(isinstance(source.options, KafkaSource) for source in spec.sources):
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
    sources = parse_flow(text).sources
    root = document.compose(text)
    nodes.put(root, "flow", nodes.text(name))
    listed = document.items(root)["sources"]
    listed.value = [
        item
        for item, source in zip(listed.value, sources, strict=True)
        if isinstance(source.options, KafkaSource)
    ]
    for item in listed.value:
        _bound(document.items(item)[SOURCE], bounds)
    return str(yaml.serialize(root))


def _bound(options: yaml.Node, bounds: Mapping[str, tuple[int, int]]) -> None:
    options.value = [pair for pair in options.value if pair[0].value not in BOUNDS]
    for number, key in enumerate(("start_offsets", "end_offsets")):
        pairs = [(nodes.text(label), nodes.number(ends[number])) for label, ends in bounds.items()]
        nodes.put(options, key, nodes.mapping(pairs))
