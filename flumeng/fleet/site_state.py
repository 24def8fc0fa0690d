"""The resources of a site, and which of these pushes own. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from flumeng.config.flow_names import is_part
from flumeng.control.commands.settings import SETTINGS
from flumeng.control.zookeeper import Unreadable, Versioned
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
    number_text,
    of_node,
    setting_text,
    site_text,
)
from flumeng.fleet.site_copy import SiteCopy
from zkschema import paths, records, table

DELETED = "deleted"


@dataclass(frozen=True)
class SiteState:
    """The state of a site. ``resources``: without settings at their default, unless owned.
    ``owned``: digests of the pushed or adopted values by key. ``ending``: names of flows being
    deleted. ``unreadable``: why, by key or its prefix. ``returned``: keys of flows with an
    abandoned rollout; ``went_back``: those not aborted by hand."""

    resources: Resources
    owned: Mapping[str, str] = field(default_factory=dict)
    ending: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    returned: frozenset[str] = frozenset()
    went_back: frozenset[str] = frozenset()

    def why_unknown(self, key: str) -> str:
        """Return why the resource cannot be read; empty when it can."""
        kind = kind_of(key)
        starts = (key, kind, f"{kind}/{of_node(key)[0]}")
        return next((self.unreadable[start] for start in starts if start in self.unreadable), "")

    def why_named(self, key: str, value: str | None) -> str:
        """Return why the cluster cannot get this name among sites; empty when it can."""
        named = next((name_of(k) for k, v in self.resources.items() if v == HERE), "")
        if value != HERE or named in ("", name_of(key)):
            return ""
        return f"the cluster is the site {named}: `flumeng site name {name_of(key)}` renames it"

    def why_waits(self, key: str) -> str:
        """Return a sentence if a node has to register before the resource is written, else ""."""
        kind = kind_of(key)
        if kind in (LABEL, CAPACITY):
            node = of_node(key)[0]
        else:
            node = name_of(key).partition("@")[2] if kind == CHOKE else ""
        return f"node {node} has not registered yet" if node and node not in self.nodes else ""


def push_of(copy: SiteCopy) -> records.Push:
    """Return the last push. Raises ``CorruptError``, or ``UserError`` for a newer record."""
    stored = copy.read(paths.push())
    return stored.value if stored else records.Push()


def why_not_pushed(copy: SiteCopy) -> str:
    """Return why nothing can be pushed to the site; empty when it can."""
    schema = copy.znodes[str(paths.schema())]
    if schema is None:
        return "there is no flumeng cluster: run `flumeng schema init`"
    if isinstance(schema, Unreadable):
        return str(schema)
    version = schema.value.version
    if version > table.VERSION:
        return f"its schema is {version}, this flumeng supports {table.VERSION}: upgrade flumeng"
    if version < table.VERSION:
        return (
            f"the cluster has schema version {version}, pushes need {table.VERSION}: run `flumeng "
            "schema migrate --finish` there"
        )
    push = copy.znodes[str(paths.push())]
    return str(push) if isinstance(push, Unreadable) else ""


def why_not_now(copy: SiteCopy) -> str:
    """Return why nothing may be changed now; empty when it may."""
    cluster = copy.znodes[str(paths.cluster())]
    maintenance = cluster.value.maintenance if isinstance(cluster, Versioned) else None
    return f"maintenance mode, by {maintenance.who}: {maintenance.why}" if maintenance else ""


def state_of(copy: SiteCopy) -> SiteState:
    owned = push_of(copy).resources
    unreadable: dict[str, str] = {}
    resources = {
        **dict(_flows(copy, unreadable)),
        **dict(_of_cluster(copy, owned, unreadable)),
        **dict(_of_nodes(copy, unreadable)),
        **dict(_of_sites(copy, unreadable)),
    }
    flows = {
        name: stored.value
        for name in copy.children(paths.flows())
        if isinstance(stored := copy.znodes[str(paths.flow(name))], Versioned)
    }
    return SiteState(
        resources,
        owned,
        frozenset(name for name, flow in flows.items() if flow.state == DELETED),
        frozenset(copy.children(paths.nodes())),
        unreadable,
        frozenset(f"{FLOW}/{name}" for name, flow in flows.items() if flow.went_back),
        frozenset(
            f"{FLOW}/{name}"
            for name, flow in flows.items()
            if flow.went_back and not flow.went_back.startswith(records.ABORTED)
        ),
    )


def _flows(copy: SiteCopy, unreadable: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the flows, without isolated parts, which follow from their flow's text."""
    for name in copy.children(paths.flows()):
        if is_part(name):
            continue
        key = f"{FLOW}/{name}"
        flow = copy.znodes[str(paths.flow(name))]
        if isinstance(flow, Unreadable):
            unreadable[key] = str(flow)
        if not isinstance(flow, Versioned) or flow.value.state == DELETED:
            continue
        path = paths.revision(name, str(flow.value.revision))
        text = copy.znodes[str(path)]
        if isinstance(text, Versioned):
            yield key, text.value.text
        else:
            unreadable[key] = str(text) if text else f"{path} is missing"


def _of_cluster(
    copy: SiteCopy, owned: Mapping[str, str], unreadable: dict[str, str]
) -> Iterator[tuple[str, str]]:
    stored = copy.znodes[str(paths.cluster())]
    if not isinstance(stored, Versioned):
        why = str(stored) if stored else f"{paths.cluster()} is missing"
        unreadable[SETTING] = unreadable[CHOKE] = why
        return
    for name, setting in SETTINGS.items():
        key, value = f"{SETTING}/{name}", setting.get(stored.value)
        unset = value == setting.get(records.Cluster())
        if value is not None and (key in owned or not unset):
            yield key, setting_text(value)
    for name, rate in stored.value.chokes.items():
        yield f"{CHOKE}/{name}", number_text(rate)


def _of_sites(copy: SiteCopy, unreadable: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name in copy.children(paths.sites()):
        stored = copy.znodes[str(paths.site(name))]
        if isinstance(stored, Unreadable):
            unreadable[f"{SITE}/{name}"] = str(stored)
        elif stored is not None:
            yield f"{SITE}/{name}", site_text(stored.value)
    cluster = copy.record(paths.cluster())
    if cluster is None:
        unreadable[SITE] = f"{paths.cluster()} cannot be read"
    elif cluster.value.site:
        yield f"{SITE}/{cluster.value.site}", HERE


def _of_nodes(copy: SiteCopy, unreadable: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name in copy.children(paths.nodes()):
        stored = copy.znodes[str(paths.node(name))]
        if isinstance(stored, Unreadable):
            unreadable[f"{LABEL}/{name}"] = unreadable[f"{CAPACITY}/{name}"] = str(stored)
        elif stored is not None:
            for label, value in stored.value.labels.items():
                yield f"{LABEL}/{name}/{label}", value
            for dimension, amount in stored.value.capacity.items():
                yield f"{CAPACITY}/{name}/{dimension}", number_text(amount)
