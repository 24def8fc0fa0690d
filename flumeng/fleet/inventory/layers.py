"""The files of an inventory by layer: ``base``, ``groups/GROUP`` for each group of a site in order,
``sites/SITE``. Each node of a YAML tree has its file and line as its mark. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

BASE = "base"
VERBATIM = "# flumeng: verbatim"
"""First line of a flow file that is used byte for byte, without overlays and variables."""

_VERBATIM = re.compile(rf"(\ufeff?){VERBATIM}[ \t]*\r?\n")


@dataclass(frozen=True, eq=False)
class LayerFile:
    """A file of a layer. ``name``: path within the inventory; ``root``: the file's YAML tree. Equal
    by identity only, to serve as a cache key. A verbatim ``text`` lacks the file's first line."""

    name: str
    text: str
    root: yaml.MappingNode
    is_verbatim: bool = False


@dataclass(frozen=True)
class Layer:
    """A layer. ``flows`` are by the name in the file; ``cluster`` is ``cluster.yaml``."""

    flows: Mapping[str, LayerFile] = field(default_factory=dict)
    cluster: LayerFile | None = None


def names(site: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a site's layers, lowest first."""
    return (BASE, *(f"groups/{group}" for group in groups), f"sites/{site}")


def marked_verbatim(text: str) -> str:
    mark, rest = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    return f"{mark}{VERBATIM}\n{rest}"


def verbatim(content: str) -> str | None:
    """Return the flow in a file marked verbatim; None for any other file."""
    match = _VERBATIM.match(content)
    return None if match is None else match[1] + content[match.end() :]
