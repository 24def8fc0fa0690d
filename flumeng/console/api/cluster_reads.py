"""Reads of the whole cluster, its settings, its schema, and other sites."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from flumeng.console.api.read import Given, Name, Parameter, Read
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


def _status(console: Console, _given: Given) -> Any:
    return console.pictures.look().status


def _top(console: Console, _given: Given) -> Any:
    picture = console.pictures.look()
    return flow_rates.top(picture.status, picture.nodes, picture.rates)


def _audit(console: Console, given: Given) -> list[history.AuditRow]:
    with console.copy.query() as cache:
        return history.audit(cache, given["last"])


def _settings(console: Console, given: Given) -> cluster_settings.ClusterSettings:
    with console.copy.query() as cache:
        return cluster_settings.cluster_settings(cache, given.get("node"))


def _links(console: Console, _given: Given) -> list[links.LinkRow]:
    with console.copy.query() as cache:
        return links.links(cache, cache.children(paths.flows()), console.clock())


def _sites(console: Console, _given: Given) -> known_sites.KnownSites:
    with console.copy.query() as cache:
        return known_sites.known_sites(cache)


def _site(console: Console, given: Given) -> SiteRow:
    with console.copy.query() as cache:
        return known_sites.site(cache, given["site"])


def _znodes(_console: Console, _given: Given) -> schema.Znodes:
    return schema.znodes()


def _problems(console: Console, _given: Given) -> list[Problem]:
    return verify_cluster(console.store)


def _migrations(console: Console, _given: Given) -> schema.Migrations:
    with console.copy.query() as cache:
        return schema.migrations(cache)


def _components(_console: Console, _given: Given) -> list[Section]:
    return components.components()


def _sections(_console: Console, given: Given) -> list[Section]:
    return components.sections(given["component"])


READS = (
    Read(
        "status",
        "/status",
        "flumeng status",
        "The health of the cluster, with causes and remedies; the masters; all flows.",
        Status,
        _status,
    ),
    Read(
        "top",
        "/top",
        "flumeng top",
        "The health of the cluster, with all nodes, and the rates of all flows.",
        Top,
        _top,
    ),
    Read(
        "cluster-show",
        "/cluster",
        "flumeng cluster show",
        "Every setting, and maintenance mode.",
        cluster_settings.ClusterSettings,
        _settings,
        (Parameter("node", "The settings in force on this node.", Name),),
    ),
    Read(
        "cluster-audit",
        "/audit",
        "flumeng cluster audit",
        "The audit: each change with its author, time and reason; the newest comes last.",
        list[history.AuditRow],
        _audit,
        (
            Parameter(
                "last", "The newest entries.", Annotated[int, Meta(ge=1, le=2000)], default=20
            ),
        ),
    ),
    Read(
        "links",
        "/links",
        "flumeng status",
        "The links of flows here to other sites.",
        list[links.LinkRow],
        _links,
    ),
    Read(
        "site-list",
        "/sites",
        "flumeng site list",
        "The other sites, and the flows here that read them.",
        known_sites.KnownSites,
        _sites,
    ),
    Read(
        "site-show", "/sites/{site}", "flumeng site show {site}", "One other site.", SiteRow, _site
    ),
    Read(
        "schema-show",
        "/schema",
        "flumeng schema show",
        "Every kind of znode that this flumeng knows.",
        schema.Znodes,
        _znodes,
    ),
    Read(
        "schema-verify",
        "/schema/problems",
        "flumeng schema verify",
        "Violations of the schema in the tree, checked within the last minute.",
        list[Problem],
        _problems,
        shared_seconds=VERIFIED_SECONDS,
    ),
    Read(
        "schema-migrate",
        "/schema/migrations",
        "flumeng schema migrate",
        "The version of the tree, migrations to come, and processes that prevent them.",
        schema.Migrations,
        _migrations,
    ),
    Read(
        "components",
        "/components",
        "flumeng components",
        "All sources, filters and sinks, with their options.",
        list[Section],
        _components,
    ),
    Read(
        "component-show",
        "/components/{component}",
        "flumeng components {component}",
        "The options of the components with this name, or of an option of a flow.",
        list[Section],
        _sections,
    ),
)
