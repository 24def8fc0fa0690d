"""Reads ``cluster.yaml``: settings, chokes, and labels and capacities of nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flumeng.config import document
from flumeng.config.decode import INVALID, Decoder
from flumeng.control.commands.settings import SETTINGS
from flumeng.control.commands.sites import checked_site
from flumeng.fleet import resources
from flumeng.fleet.resources import CAPACITY, CHOKE, LABEL, SETTING, SITE, Resources
from flumeng.platform.errors import UserError
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_name
from flumeng.platform.options.problems import Problem, SpecError, nearest
from flumeng.platform.options.quantities import size
from zkschema.records import Cluster
from zkschema.table import NAME

T = TypeVar("T")
V = TypeVar("V")


def check_setting(text: str) -> None:
    if text not in SETTINGS:
        raise ValueError(f"unknown setting; {nearest(text, SETTINGS)}")


def check_node(text: str) -> None:
    if not NAME.fullmatch(text):
        raise ValueError("expected the name of a node")


def check_choke(text: str) -> None:
    flow, at, node = text.partition("@")
    check_name(flow)
    if at:
        check_node(node)


@dataclass(frozen=True)
class NodeOptions:
    """A node of the site."""

    labels: Mapping[str, str] = option(
        doc="The node's labels.", factory=dict, example="{role: web}"
    )
    capacity: Mapping[str, float] = option(
        doc="The node's capacity in each dimension.", factory=dict, example="{slots: 4}"
    )


@dataclass(frozen=True)
class LinkedSite:
    """A site whose flows are read at others. At the site itself it is the cluster's own name, so
    the base may have all sites."""

    gateways: tuple[str, ...] = option(
        doc="The site's gateways.", default=(), example='["gw1.fra.example:9003"]'
    )
    authority: str = option(
        doc="The SHA-256 fingerprint of its certificate authority; without one, connections are in "
        "plain text.",
        default="",
        example='"5f0c..."',
    )


@dataclass(frozen=True)
class ClusterFile:
    """Settings, chokes, nodes and sites of a cluster. A push leaves those not named here unchanged,
    unless `--prune` removes one that a push made or adopted."""

    settings: Mapping[str, str] = option(
        doc="Settings of the cluster, those of `flumeng cluster show`.",
        factory=dict,
        check=check_setting,
        example="{grace_seconds: 60}",
    )
    chokes: Mapping[str, str] = option(
        doc="The most bytes per second that each node takes in of a flow, by the flow's name, or "
        "that one node takes in, by FLOW@NODE.",
        factory=dict,
        check=check_choke,
        example="{web: 10 MB, web@n1: 1 MB}",
    )
    nodes: Mapping[str, NodeOptions] = option(
        doc="Labels and capacities of nodes, by the node's name.",
        factory=dict,
        check=check_node,
        example="{n1: {labels: {role: web}}}",
    )
    sites: Mapping[str, LinkedSite] = option(
        doc="Sites whose flows are read, by their names; `flumeng site list` shows them.",
        factory=dict,
        check=check_name,
        example='{fra: {gateways: ["gw1.fra.example:9003"]}}',
    )


@dataclass(frozen=True)
class ClusterResources:
    """Resources of a cluster file. ``choke_lines``, ``site_lines``: the line of each, by name."""

    resources: Resources
    choke_lines: Mapping[str, int]
    site_lines: Mapping[str, int]


def read(text: str) -> ClusterResources:
    """Return the resources in a cluster file. Raises ``SpecError``."""
    decoder = Decoder()
    file = decoder.mapping(ClusterFile, document.compose(text), "")
    if file is INVALID:
        raise SpecError(decoder.problems)
    assert isinstance(file, ClusterFile)

    def parsed(part: str, values: Mapping[str, V], parse: Callable[[str, V], T]) -> dict[str, T]:
        parsed_values = {}
        for name, value in values.items():
            try:
                parsed_values[name] = parse(name, value)
            except (UserError, ValueError) as error:
                path = f"{part}.{name}"
                decoder.problems.append(Problem(decoder.lines[path], path, str(error)))
        return parsed_values

    settings = parsed("settings", file.settings, lambda key, value: SETTINGS[key].parse(value))
    chokes = parsed("chokes", file.chokes, lambda _, value: _rate(value))
    sites = parsed("sites", file.sites, _site_text)
    if not decoder.problems:
        _check_maintenance(settings, decoder)
    if decoder.problems:
        raise SpecError(decoder.problems)
    content = {f"{SETTING}/{key}": resources.setting_text(value) for key, value in settings.items()}
    content |= {f"{CHOKE}/{key}": resources.number_text(number) for key, number in chokes.items()}
    content |= {f"{SITE}/{name}": text for name, text in sites.items()}
    for node, options in file.nodes.items():
        content |= {f"{LABEL}/{node}/{name}": value for name, value in options.labels.items()}
        content |= {
            f"{CAPACITY}/{node}/{name}": resources.number_text(number)
            for name, number in options.capacity.items()
        }
    return ClusterResources(
        content,
        {name: decoder.lines[f"chokes.{name}"] for name in chokes},
        {name: decoder.lines[f"sites.{name}"] for name in sites},
    )


def _site_text(name: str, options: LinkedSite) -> str:
    """Return the value of the site; "" without gateways, as at the site itself."""
    if not options.gateways and not options.authority:
        return ""
    return resources.site_text(checked_site(name, options.gateways, options.authority))


def _rate(text: str) -> int:
    rate = size(text)
    if rate <= 0:
        raise ValueError("expected a rate above 0: to let nothing through, suspend the flow")
    return rate


def _check_maintenance(settings: Mapping[str, Any], decoder: Decoder) -> None:
    """Report maintenance that would end above the share at which it begins, given or default."""
    limits = Cluster().maintenance_limits
    leave = settings.get("maintenance_leave", limits.leave)
    enter = settings.get("maintenance_enter", limits.enter)
    if leave > enter:
        given = "leave" if "maintenance_leave" in settings else "enter"
        path = f"settings.maintenance_{given}"
        message = f"maintenance_leave ({leave:g}) may not be above maintenance_enter ({enter:g})"
        decoder.problems.append(Problem(decoder.lines[path], path, message))
