"""``flumeng status``: the health of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from cli.context import CliContext
from cli.options import json_option
from cli.output import count, show_json, show_table
from cli.sites import Clusters, with_clusters
from flumeng.control.queries import health
from flumeng.control.queries.causes import grouped
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import FlumengError

HEADERS = ("FLOW", "STATE", "REVISION", "RUNNING", "LAG", "ROLLOUT", "HEALTH")


@click.command()
@json_option
@with_clusters
def status(context: CliContext, clusters: Clusters, as_json: bool) -> None:
    """Show whether the cluster is well, and if not, the causes and remedies. Exit code 1 when not.

    Of all sites at once it is 1 when any is not well, or cannot be read.
    """

    def look(store: Store) -> dict[str, Any]:
        return health.status(store, context.accounts, context.counters, context.clock())

    if clusters.are_many:
        _show_sites(clusters.read_each(look), as_json=as_json)
        return
    with clusters.open() as store:
        found = look(store)
    if as_json:
        show_json(found)
    else:
        nodes = found["nodes"]
        click.echo(
            f"{found['health']}: {count(len(found['masters']), 'master')} live, "
            f"{nodes['live']} of {nodes['registered']} nodes live"
        )
        for what, advice in grouped(found["causes"]):
            click.echo(f"- {what}\n  {advice}")
        show_table(
            HEADERS,
            (
                (*state_cells(flow), _progress(flow["rollout"]), flow["health"]["shown"])
                for flow in found["flows"]
            ),
        )
    if found["health"] != "ok":
        raise SystemExit(1)


def _show_sites(found: Mapping[str, dict[str, Any] | FlumengError], *, as_json: bool) -> None:
    read = {name: said for name, said in found.items() if not isinstance(said, FlumengError)}
    silent = {name: said for name, said in found.items() if isinstance(said, FlumengError)}
    well = sum(said["health"] == "ok" for said in read.values())
    if as_json:
        show_json({name: read.get(name) or {"error": str(silent[name])} for name in found})
    else:
        click.echo(f"{well} of {count(len(found), 'site')} {'is' if well == 1 else 'are'} ok")
        for name, error in silent.items():
            click.echo(f"- site {name} cannot be read: {error}")
        for name, said in read.items():
            for what, advice in grouped(said["causes"]):
                click.echo(f"- site {name}: {what}\n  {advice}")
        show_table(
            ("SITE", "HEALTH", "MASTERS", "NODES", "FLOWS", "LAG"),
            (_site(name, read.get(name)) for name in found),
        )
    if well < len(found):
        raise SystemExit(1)


def _site(name: str, said: dict[str, Any] | None) -> Sequence[object]:
    if said is None:
        return name, "unreadable", None, None, None, None
    flows, nodes = said["flows"], said["nodes"]
    running = sum(flow["state"] == "running" for flow in flows)
    unknown = any(flow["lag_unknown"] for flow in flows)
    return (
        name,
        said["health"],
        len(said["masters"]),
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


def lag_text(flow: dict[str, Any]) -> str:
    """Events, age of the oldest, and trend: ``1200, 15 s, growing``."""
    said = [f"{flow['lag']}{'+?' if flow['lag_unknown'] else ''}"]
    if flow["lag"]:
        said += [f"{flow['lag_seconds']:.0f} s"] if flow["lag_seconds"] is not None else []
        said += [flow["lag_trend"]] if flow["lag_trend"] else []
    return ", ".join(said)


def _progress(rollout: dict[str, Any] | None) -> str:
    if rollout is None:
        return ""
    return f"{rollout['running']}/{rollout['tasks']} run {rollout['revision']} ({rollout['stage']})"
