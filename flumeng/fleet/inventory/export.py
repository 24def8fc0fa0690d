"""Makes an inventory of the present resources of sites; rendering it gives the same texts. Pure.
The base has each flow text that at least ``SHARE`` of the sites have, and other resources that all
sites have. Other flows are whole files of their sites, marked ``layers.VERBATIM``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import yaml

from flumeng.config import document
from flumeng.control.commands.settings import SPARK
from flumeng.fleet.inventory import layers, overlays, variables
from flumeng.fleet.resources import (
    CAPACITY,
    CHOKE,
    FLOW,
    HERE,
    LABEL,
    SETTING,
    SITE,
    Resources,
    kind_of,
    name_of,
    of_node,
    site_of,
)
from flumeng.platform.options.problems import SpecError

SHARE = Fraction(2, 3)
_UNFOLDED = 2**20
_ABOUT = """\
# The content of these sites at the time of `flumeng push export`: base/ has their common part,
# sites/ the rest of each. They are pushed one after the other, in one wave: put those that may
# be the first into a wave before it, and sites that have something in common into groups.
"""
_KEEP_LINE_ENDS = "*.yaml -text\n"


def export(
    sites: Mapping[str, Resources], inventory: str, zookeepers: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the files by path, to be written without changing line ends. Resources are exported
    unchecked: ``push export`` renders the files and reports what differs, such as a label named
    ``$patch``, which is read as a directive."""
    files = {"sites.yaml": _ABOUT + _yaml(_sites(inventory, zookeepers))}
    flows = {
        site: {name_of(key): text for key, text in held.items() if kind_of(key) == FLOW}
        for site, held in sites.items()
    }
    base = _common_flows(flows)
    files |= {f"{layers.BASE}/flows/{flow}.yaml": _kept(text) for flow, text in base.items()}
    for site, own in flows.items():
        files |= {f"sites/{site}/flows/{name}": text for name, text in _over(base, own).items()}

    others = [
        {key: value for key, value in held.items() if kind_of(key) != FLOW}
        for held in sites.values()
    ]
    common = dict(set.intersection(*(set(held.items()) for held in others))) if others else {}
    if common:
        files[f"{layers.BASE}/cluster.yaml"] = _cluster(common)
    for site, held in zip(sites, others, strict=True):
        own = {key: value for key, value in held.items() if key not in common}
        if own:
            files[f"sites/{site}/cluster.yaml"] = _cluster(own)
    if any("\r" in text for text in files.values()):
        files[".gitattributes"] = _KEEP_LINE_ENDS
    return dict(sorted(files.items()))


def _sites(inventory: str, zookeepers: Mapping[str, str]) -> dict[str, Any]:
    return {
        "inventory": inventory,
        "sites": {site: {"zookeeper": servers} for site, servers in zookeepers.items()},
        "waves": [{"wave": "all", "rest": True}],
    }


def _common_flows(flows: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    count = Counter(pair for own in flows.values() for pair in own.items())
    return {flow: text for (flow, text), sites in count.items() if sites >= SHARE * len(flows)}


def _over(base: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    files = {
        f"{flow}.yaml": _yaml({"flow": flow, overlays.DIRECTIVE: overlays.DELETE})
        for flow in base
        if flow not in own
    }
    for flow, text in own.items():
        if flow not in base:
            files[f"{flow}.yaml"] = _kept(text)
        elif base[flow] != text:
            files[f"{flow}.yaml"] = layers.marked_verbatim(text)
    return files


def _kept(text: str) -> str:
    """Return a file that renders to this text when no lower layer has the flow."""
    try:
        root = document.compose(text)
    except SpecError:
        return text
    changes = variables.usage(root).changes or overlays.has_directives(root)
    is_marked = layers.verbatim(text) is not None
    return layers.marked_verbatim(text) if changes or is_marked else text


def _cluster(held: Resources) -> str:
    numbers: dict[str, dict[str, int | float | str]] = {SETTING: {}, CHOKE: {}}
    nodes: dict[str, dict[str, dict[str, Any]]] = {}
    sites: dict[str, dict[str, Any]] = {}
    for key, value in sorted(held.items()):
        kind = kind_of(key)
        if kind == SITE:
            sites[name_of(key)] = _site(value)
            continue
        if kind in numbers:
            name = name_of(key)
            of_spark = kind == SETTING and name.startswith(SPARK)
            numbers[kind][name] = value.replace("${", "$${") if of_spark else _number(value)
            continue
        node, name = of_node(key)
        part = {LABEL: "labels", CAPACITY: "capacity"}[kind]
        exported = value.replace("${", "$${") if kind == LABEL else _number(value)
        nodes.setdefault(node, {}).setdefault(part, {})[name] = exported
    parts = {"settings": numbers[SETTING], "chokes": numbers[CHOKE], "nodes": nodes, "sites": sites}
    return _yaml({name: part for name, part in parts.items() if part})


def _site(value: str) -> dict[str, Any]:
    if value == HERE:
        return {}
    site = site_of(value)
    return {
        "gateways": [*site.gateways],
        **({"authority": site.authority} if site.authority else {}),
    }


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=_UNFOLDED)
    return text
