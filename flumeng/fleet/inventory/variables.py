"""Fills ``${name}`` into scalar values, as text and never as YAML. Pure. ``$${`` escapes ``${``;
``${secret:...}`` stays for the node. ``${site}`` and ``${zone}`` are built in; a site's variables
override its groups', later groups override earlier ones, and both override those of all sites."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from flumeng.fleet.inventory import overlays
from flumeng.fleet.inventory.overlays import Problems
from flumeng.platform.options.problems import nearest

BUILT_IN = ("site", "zone")
_NAME = re.compile("[a-z][a-z0-9_]*", re.ASCII)
_REFERENCE = re.compile(r"\$\$\{|\$\{(?!secret:)([^}]*)(\}?)")
FORM = 'expected ${name} with small letters, digits and underscores; for the text "${" write "$${"'


def check_name(text: str) -> None:
    if not _NAME.fullmatch(text):
        raise ValueError(
            "expected a variable's name: small letters, digits and underscores, a letter first"
        )
    if text in BUILT_IN:
        raise ValueError(f"the variable {text} is built in: use another name")


@dataclass(frozen=True)
class Usage:
    """Variables used in a tree. ``names``: sorted; ``changes``: whether filling in changes it."""

    names: tuple[str, ...]
    changes: bool


def usage(root: yaml.Node) -> Usage:
    names: set[str] = set()
    changes = False
    for node in _values(root):
        for match in _REFERENCE.finditer(node.value):
            changes = True
            if match[1] is not None:
                names.add(match[1])
    return Usage(tuple(sorted(names)), changes)


def filled(
    root: yaml.Node, values: Mapping[str, str], problems: Problems, path: str = ""
) -> yaml.Node:
    """Return the tree filled in; unchanged nodes are shared with ``root``. Extends ``problems``."""
    if isinstance(root, yaml.MappingNode):
        pairs = [
            (key, filled(value, values, problems, f"{path}.{key.value}" if path else key.value))
            for key, value in root.value
        ]
        if all(new[1] is old[1] for new, old in zip(pairs, root.value, strict=True)):
            return root
        return yaml.MappingNode(root.tag, pairs, root.start_mark, root.end_mark, root.flow_style)
    if isinstance(root, yaml.SequenceNode):
        entries = [
            filled(entry, values, problems, f"{path}[{index}]")
            for index, entry in enumerate(root.value)
        ]
        if all(new is old for new, old in zip(entries, root.value, strict=True)):
            return root
        return yaml.SequenceNode(root.tag, entries, root.start_mark, root.end_mark, root.flow_style)
    assert isinstance(root, yaml.ScalarNode)
    if "${" not in root.value:
        return root
    text, wrong = fill(root.value, values)
    problems += [overlays.problem(root, path, message) for message in wrong]
    if text == root.value:
        return root
    tag = "tag:yaml.org,2002:str"
    return yaml.ScalarNode(tag, text, root.start_mark, root.end_mark, root.style)


def fill(text: str, values: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the text with its variables filled in, and the errors of unfilled ones."""
    wrong = []

    def value(match: re.Match[str]) -> str:
        name, closed = match[1], match[2]
        if name is None:
            return "${"
        if not closed or not _NAME.fullmatch(name):
            wrong.append(FORM)
        elif name in values:
            return values[name]
        elif name == "zone":
            wrong.append("the site has no zone: give it one in sites.yaml")
        else:
            wrong.append(f'unknown variable "{name}"; {nearest(name, values)}')
        return match[0]

    return _REFERENCE.sub(value, text), wrong


def _values(node: yaml.Node) -> list[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        return [node]
    if isinstance(node, yaml.MappingNode):
        return [scalar for _, value in node.value for scalar in _values(value)]
    return [scalar for entry in node.value for scalar in _values(entry)]
