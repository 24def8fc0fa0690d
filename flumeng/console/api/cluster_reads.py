"""Reads of the whole cluster, its settings, its schema, and other sites."""

from __future__ import annotations

from typing import Annotated, cast

from msgspec import Meta

from flumeng.console.api.read import Given, Name, Parameter, Reads
from flumeng.console.console import Console
from flumeng.control.commands.cluster import verify_cluster
from flumeng.control.commands.sites import SiteRow
from flumeng.control.queries import (
    cluster_settings,
    components,
    flow_rates,
    history,
    known_sites,
    links,
    schema,
)
from flumeng.control.queries.components import Section
from flumeng.control.queries.status_document import Status, Top
from zkschema import paths
from zkschema.verify import Problem

VERIFIED_SECONDS = 60.0
"""A check reads the whole tree: viewers share its result for this long."""


READS = Reads()


@READS.get("status", "/status")
def _status(console: Console, _given: Given) -> Status:
    """The health of the cluster, with causes and remedies; the masters; all flows."""
    return cast("Status", console.pictures.look().status)


@READS.get("top", "/top")
def _top(console: Console, _given: Given) -> Top:
    """The health of the cluster, with all nodes, and the rates of all flows."""
    picture = console.pictures.look()
    return cast("Top", flow_rates.top(picture.status, picture.nodes, picture.rates))


@READS.get(
    "cluster-audit",
    "/audit",
    Parameter("last", "The newest entries.", Annotated[int, Meta(ge=1, le=2000)], default=20),
)
def _audit(console: Console, given: Given) -> list[history.AuditRow]:
    """The audit: each change with its author, time and reason; the newest comes last."""
    with console.copy.query() as cache:
        return history.audit(cache, given["last"])


@READS.get(
    "cluster-show", "/cluster", Parameter("node", "The settings in force on this node.", Name)
)
def _settings(console: Console, given: Given) -> cluster_settings.ClusterSettings:
    """Every setting, and maintenance mode."""
    with console.copy.query() as cache:
        return cluster_settings.cluster_settings(cache, given.get("node"))


@READS.get("links", "/links", command="status")
def _links(console: Console, _given: Given) -> list[links.LinkRow]:
    """The links of flows here to other sites."""
    with console.copy.query() as cache:
        return links.links(cache, cache.children(paths.flows()), console.clock())


@READS.get("site-list", "/sites")
def _sites(console: Console, _given: Given) -> known_sites.KnownSites:
    """The other sites, and the flows here that read them."""
    with console.copy.query() as cache:
        return known_sites.known_sites(cache)


@READS.get("site-show", "/sites/{site}")
def _site(console: Console, given: Given) -> SiteRow:
    """One other site."""
    with console.copy.query() as cache:
        return known_sites.site(cache, given["site"])


@READS.get("schema-show", "/schema")
def _znodes(_console: Console, _given: Given) -> schema.Znodes:
    """Every kind of znode that this flumeng knows."""
    return schema.znodes()


@READS.get("schema-verify", "/schema/problems", shared_seconds=VERIFIED_SECONDS)
def _problems(console: Console, _given: Given) -> list[Problem]:
    """Violations of the schema in the tree, checked within the last minute."""
    return verify_cluster(console.store)


@READS.get("schema-migrate", "/schema/migrations")
def _migrations(console: Console, _given: Given) -> schema.Migrations:
    """The version of the tree, migrations to come, and processes that prevent them."""
    with console.copy.query() as cache:
        return schema.migrations(cache)


@READS.get("components", "/components")
def _components(_console: Console, _given: Given) -> list[Section]:
    """All sources, filters and sinks, with their options."""
    return components.components()


@READS.get("component-show", "/components/{component}", command="components {component}")
def _sections(_console: Console, given: Given) -> list[Section]:
    """The options of the components with this name, or of an option of a flow."""
    return components.sections(given["component"])
