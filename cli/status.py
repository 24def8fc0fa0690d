"""``flumeng status``: is the cluster well?"""

from __future__ import annotations

from typing import Any

import click

from cli.context import CliContext, with_store
from cli.options import json_option
from cli.output import count, show_json, show_table
from flumeng.store import Store
from flumeng.views import health


@click.command()
@json_option
@with_store
def status(context: CliContext, store: Store, as_json: bool) -> None:
    """Say whether the cluster is well, and if not: why, and what to do. Exit code 1 when not."""
    found = health.status(store, context.accounts, context.counters, context.clock())
    if as_json:
        show_json(found)
    else:
        nodes = found["nodes"]
        click.echo(
            f"{found['health']}: {count(len(found['masters']), 'master')} live, "
            f"{nodes['live']} of {nodes['registered']} nodes live"
        )
        for cause in found["causes"]:
            click.echo(f"- {cause['what']}\n  {cause['advice']}")
        show_table(
            ("FLOW", "STATE", "REVISION", "RUNNING", "LAG", "ROLLOUT"),
            (
                (
                    flow["flow"],
                    flow["state"],
                    flow["revision"],
                    f"{flow['running']}/{flow['tasks']}",
                    lag_text(flow),
                    _progress(flow["rollout"]),
                )
                for flow in found["flows"]
            ),
        )
    if found["health"] != "ok":
        raise SystemExit(1)


def lag_text(flow: dict[str, Any]) -> str:
    """Events, the age of the oldest, and which way it goes: ``1200, 15 s, growing``."""
    said = [f"{flow['lag']}{'+?' if flow['lag_unknown'] else ''}"]
    if flow["lag"]:
        said += [f"{flow['lag_seconds']:.0f} s"] if flow["lag_seconds"] is not None else []
        said += [flow["lag_trend"]] if flow["lag_trend"] else []
    return ", ".join(said)


def _progress(rollout: dict[str, Any] | None) -> str:
    if rollout is None:
        return ""
    return f"{rollout['running']}/{rollout['tasks']} run {rollout['revision']} ({rollout['stage']})"
