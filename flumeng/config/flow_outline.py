"""A summary of a flow from its unchecked text: several times faster, for lists of many flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from flumeng.config import FlowSpec, document


@dataclass(frozen=True)
class Outline:
    delivery: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: FlowSpec) -> Outline:
        return cls(
            spec.delivery,
            tuple(source.name for source in spec.sources),
            tuple(leaf.part.name for leaf in spec.leaves),
            dict(spec.labels),
        )


def outline(text: str) -> Outline:
    """Summarise a flow's text. Raises ``SpecError`` when it is not YAML."""
    options = document.items(document.compose(text))
    delivery = options.get("delivery")
    return Outline(
        str(delivery.value) if isinstance(delivery, yaml.ScalarNode) else FlowSpec.delivery,
        _names(_entries(options.get("sources"))),
        tuple(_sinks(options)),
        _labels(options.get("labels")),
    )


def _sinks(segment: Mapping[str, yaml.Node]) -> Iterator[str]:
    """Yield the sinks of a flow or branch, as ``FlowSpec.leaves``, without isolated ones."""
    yield from _names(_own(segment.get("sinks")))
    for branch in _own(segment.get("branches")):
        if isinstance(branch, yaml.MappingNode):
            yield from _sinks(document.items(branch))


def _own(node: yaml.Node | None) -> list[yaml.Node]:
    return [item for item in _entries(node) if not _is_isolated(item)]


def _entries(node: yaml.Node | None) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _is_isolated(entry: yaml.Node) -> bool:
    isolated = document.items(entry).get("isolated")
    return isolated is not None and isolated.value == "true"


def _labels(node: yaml.Node | None) -> dict[str, str]:
    pairs = document.items(node) if isinstance(node, yaml.MappingNode) else {}
    return {
        name: str(value.value)
        for name, value in pairs.items()
        if isinstance(value, yaml.ScalarNode)
    }


def _names(listed: Sequence[yaml.Node]) -> tuple[str, ...]:
    return tuple(
        str(item.value)
        if isinstance(item, yaml.ScalarNode)
        else next(iter(document.items(item)), "")
        for item in listed
    )
