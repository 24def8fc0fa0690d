"""``flumeng status``: the health of the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from cli.context import CliContext
from cli.options import json_option
from cli.output import count, show_json, show_table
from cli.sites import Clusters, with_clusters
from flumeng.control.queries import health
from flumeng.control.queries.causes import grouped
from flumeng.control.queries.links import amount, span
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import FlumengError

HEADERS = ("FLOW", "STATE", "REVISION", "RUNNING", "LAG", "ROLLOUT", "HEALTH")


@click.command()
@json_option
@with_clusters
def status(context: CliContext, clusters: Clusters, as_json: bool) -> None:
    """Show the health of the cluster, with causes and remedies. Exit code 1 if it is degraded.

    For all sites at once it is 1 if any is degraded, or cannot be read.
    """

    def read_status(store: Store) -> dict[str, Any]:
        return health.status(store, context.accounts, context.counters, context.clock())

    if clusters.are_many:
        _show_sites(clusters.read_each(read_status), as_json=as_json)
        return
    with clusters.open() as store:
        current = read_status(store)
    if as_json:
        show_json(current)
    else:
        nodes = current["nodes"]
        click.echo(
            f"{current['health']}: {count(len(current['masters']), 'master')} live, "
            f"{nodes['live']} of {nodes['registered']} nodes live"
        )
        for problem, advice in grouped(current["causes"]):
            click.echo(f"- {problem}\n  {advice}")
        show_table(
            HEADERS,
            (
                (*state_cells(flow), _progress(flow["rollout"]), flow["health"]["shown"])
                for flow in current["flows"]
            ),
        )
        for headers, rows in link_tables(current):
            show_table(headers, rows)
    if current["health"] != "ok":
        raise SystemExit(1)


def _show_sites(results: Mapping[str, dict[str, Any] | FlumengError], *, as_json: bool) -> None:
    read = {name: res for name, res in results.items() if not isinstance(res, FlumengError)}
    silent = {name: res for name, res in results.items() if isinstance(res, FlumengError)}
    well = sum(site_status["health"] == "ok" for site_status in read.values())
    if as_json:
        show_json({name: read.get(name) or {"error": str(silent[name])} for name in results})
    else:
        click.echo(f"{well} of {count(len(results), 'site')} {'is' if well == 1 else 'are'} ok")
        for name, error in silent.items():
            click.echo(f"- site {name} cannot be read: {error}")
        for name, site_status in read.items():
            for problem, advice in grouped(site_status["causes"]):
                click.echo(f"- site {name}: {problem}\n  {advice}")
        show_table(
            ("SITE", "HEALTH", "MASTERS", "NODES", "FLOWS", "LAG"),
            (_site(name, read.get(name)) for name in results),
        )
    if well < len(results):
        raise SystemExit(1)


def _site(name: str, site_status: dict[str, Any] | None) -> Sequence[object]:
    if site_status is None:
        return name, "unreadable", None, None, None, None
    flows, nodes = site_status["flows"], site_status["nodes"]
    running = sum(flow["state"] == "running" for flow in flows)
    unknown = any(flow["lag_unknown"] for flow in flows)
    return (
        name,
        site_status["health"],
        len(site_status["masters"]),
        f"{nodes['live']}/{nodes['registered']}",
        f"{running}/{len(flows)}",
        f"{sum(flow['lag'] for flow in flows)}{'+?' if unknown else ''}",
    )


def state_cells(flow: dict[str, Any]) -> Sequence[object]:
    return (
        flow["flow"],
        flow["state"],
        flow["revision"],
        f"{flow['running']}/{flow['tasks']}",
        lag_text(flow),
    )


def link_tables(status: dict[str, Any]) -> Iterator[tuple[Sequence[str], list[Sequence[object]]]]:
    """Yield the tables of links to other sites, and of their leases here, without empty ones."""
    lags = {flow["flow"]: lag_text(flow) for flow in status["flows"]}
    if status.get("links"):
        yield (
            ("LINK OF", "READS", "STATE", "LAG", "LEASE USED", "KEPT THERE"),
            [
                (
                    link["flow"],
                    f"{link['source']} of {link['site']}",
                    link["state"],
                    lags.get(link["flow"], ""),
                    used(link["time"], link["room"]),
                    amount(link["bytes"]),
                )
                for link in status["links"]
            ],
        )
    if status.get("leases"):
        yield (
            ("LEASE OF", "ON", "AGE", "LEASE USED", "EVENTS", "BYTES"),
            [
                (
                    f"{lease['reads_as']} of {lease['site']}",
                    lease["flow"],
                    None if lease["age_seconds"] is None else span(lease["age_seconds"]),
                    used(lease["time"], lease["room"]),
                    lease["lag"],
                    None if lease["bytes"] is None else amount(lease["bytes"]),
                )
                for lease in status["leases"]
            ],
        )


def used(time: float | None, room: float | None) -> str:
    """Return the used shares of a lease: ``time 1%, room 12%``."""
    shares = (("time", time), ("room", room))
    return ", ".join(f"{what} {share:.0%}" for what, share in shares if share is not None)


def lag_text(flow: dict[str, Any]) -> str:
    """Return events, age of the oldest, and trend of a flow: ``1200, 15 s, growing``."""
    parts = [f"{flow['lag']}{'+?' if flow['lag_unknown'] else ''}"]
    if flow["lag"]:
        parts += [f"{flow['lag_seconds']:.0f} s"] if flow["lag_seconds"] is not None else []
        parts += [flow["lag_trend"]] if flow["lag_trend"] else []
    return ", ".join(parts)


def _progress(rollout: dict[str, Any] | None) -> str:
    if rollout is None:
        return ""
    return f"{rollout['running']}/{rollout['tasks']} run {rollout['revision']} ({rollout['stage']})"
