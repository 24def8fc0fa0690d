"""Nodes of YAML for flows that are made out of others' texts."""

from __future__ import annotations

from collections.abc import Iterable

import yaml

_TAGS = "tag:yaml.org,2002:"


def text(value: str) -> yaml.ScalarNode:
    return yaml.ScalarNode(f"{_TAGS}str", value)


def number(value: int) -> yaml.ScalarNode:
    return yaml.ScalarNode(f"{_TAGS}int", str(value))


def true() -> yaml.ScalarNode:
    return yaml.ScalarNode(f"{_TAGS}bool", "true")


def mapping(pairs: Iterable[tuple[yaml.Node, yaml.Node]]) -> yaml.MappingNode:
    return yaml.MappingNode(f"{_TAGS}map", list(pairs))


def listed(items: Iterable[yaml.Node]) -> yaml.SequenceNode:
    return yaml.SequenceNode(f"{_TAGS}seq", list(items))


def put(node: yaml.Node, key: str, value: yaml.Node) -> None:
    """In its place in a mapping when it is there, else at the end."""
    for place, (known, _) in enumerate(node.value):
        if known.value == key:
            node.value[place] = (known, value)
            return
    node.value.append((text(key), value))
