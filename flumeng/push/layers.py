"""The files of an inventory as they were read, layer by layer: what is rendered. Pure.

A site's *layers* are ``base``, ``groups/GROUP`` for each of its groups in their order, and
``sites/SITE``. Each node of a tree knows its file and line by its mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

BASE = "base"


@dataclass(frozen=True, eq=False)
class LayerFile:
    """``name`` is its path within the inventory, ``root`` the tree of ``text``, a mapping. Files
    are equal by identity only, so that what was made of them can be kept by it."""

    name: str
    text: str
    root: yaml.MappingNode


@dataclass(frozen=True)
class Layer:
    """``flows`` by the name that is in the file; ``cluster`` is the file ``cluster.yaml``."""

    flows: Mapping[str, LayerFile] = field(default_factory=dict)
    cluster: LayerFile | None = None


def names(site: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """The layers of a site, lowest first."""
    return (BASE, *(f"groups/{group}" for group in groups), f"sites/{site}")
