"""What a flow's text says at its top, unchecked: for lists of very many flows.

A text that was applied has been checked; reading all of it again takes several times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from flumeng.spec import FlowSpec, document


@dataclass(frozen=True)
class Outline:
    """The names of its sources and sinks, and its delivery."""

    delivery: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]

    @classmethod
    def of(cls, spec: FlowSpec) -> Outline:
        return cls(
            spec.delivery,
            tuple(source.name for source in spec.sources),
            tuple(sink.name for sink in spec.sinks),
        )


def outline(text: str) -> Outline:
    """Raises ``SpecError`` for what is not even YAML."""
    found = document.items(document.compose(text))
    delivery = found.get("delivery")
    return Outline(
        str(delivery.value) if isinstance(delivery, yaml.ScalarNode) else FlowSpec.delivery,
        _names(found.get("sources")),
        _names(found.get("sinks")),
    )


def _names(node: yaml.Node | None) -> tuple[str, ...]:
    listed = node.value if isinstance(node, yaml.SequenceNode) else ()
    return tuple(
        str(item.value)
        if isinstance(item, yaml.ScalarNode)
        else next(iter(document.items(item)), "")
        for item in listed
    )
