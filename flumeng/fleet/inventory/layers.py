"""The files of an inventory as they were read, layer by layer: what is rendered. Pure.

A site's *layers* are ``base``, ``groups/GROUP`` for each of its groups in their order, and
``sites/SITE``. Each node of a tree knows its file and line by its mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

BASE = "base"
VERBATIM = "# flumeng: verbatim"
"""The first line of a flow's file that is laid over nothing, and in which nothing is filled in: the
flow is what stands below that line, byte for byte."""

_VERBATIM = re.compile(rf"(\ufeff?){VERBATIM}[ \t]*\r?\n")


@dataclass(frozen=True, eq=False)
class LayerFile:
    """``name`` is its path within the inventory, ``root`` the tree of ``text``, a mapping. Files
    are equal by identity only, so that what was made of them can be kept by it. The ``text`` of one
    that ``is_verbatim`` is without its first line."""

    name: str
    text: str
    root: yaml.MappingNode
    is_verbatim: bool = False


@dataclass(frozen=True)
class Layer:
    """``flows`` by the name that is in the file; ``cluster`` is the file ``cluster.yaml``."""

    flows: Mapping[str, LayerFile] = field(default_factory=dict)
    cluster: LayerFile | None = None


def names(site: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """The layers of a site, lowest first."""
    return (BASE, *(f"groups/{group}" for group in groups), f"sites/{site}")


def marked_verbatim(text: str) -> str:
    """The file that holds a flow byte for byte."""
    mark, rest = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    return f"{mark}{VERBATIM}\n{rest}"


def verbatim(content: str) -> str | None:
    """The flow that a file holds byte for byte; None for any other file."""
    found = _VERBATIM.match(content)
    return None if found is None else found[1] + content[found.end() :]
