"""``flumeng top``: the cluster at a glance, again and again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from cli.context import CliContext, with_store
from cli.options import json_option
from cli.output import count, make_table, show_json, show_table
from cli.status import lag_text
from flumeng.errors import UnavailableError
from flumeng.store import Store
from flumeng.views import health, overview
from flumeng.views.overview import NodeRow

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

REFRESH_SECONDS = 2.0

Table = tuple[Sequence[str], list[Sequence[object]]]


@click.command()
@json_option
@with_store
def top(context: CliContext, store: Store, as_json: bool) -> None:
    """Show health, flows with their rates, and nodes, until Ctrl-C; in a pipe once."""
    if as_json:
        show_json(_look(context, store))
    elif not sys.stdout.isatty():
        seen = _look(context, store)
        click.echo(_headline(seen))
        for headers, rows in _tables(seen, rates(None, seen, 0.0)):
            show_table(headers, rows)
    else:
        live(context, store)


def rates(before: dict[str, Any] | None, now: dict[str, Any], seconds: float) -> dict[str, float]:
    """Events a second that reached the sinks of each flow between two looks; empty at the first."""
    if before is None:
        return {}
    acked = {flow["flow"]: flow["acked"] for flow in before["flows"]}
    return {
        flow["flow"]: max(0, flow["acked"] - acked[flow["flow"]]) / seconds
        for flow in now["flows"]
        if flow["flow"] in acked
    }


def _look(context: CliContext, store: Store) -> dict[str, Any]:
    return {
        **health.status(store, context.accounts, context.counters, context.clock()),
        "node_rows": overview.nodes(store),
    }


def _headline(seen: dict[str, Any]) -> str:
    masters, nodes = len(seen["masters"]), seen["nodes"]
    return (
        f"{seen['health']}: {count(masters, 'master')}, {nodes['live']} of "
        f"{nodes['registered']} nodes live, {count(len(seen['causes']), 'problem')}"
    )


def _tables(seen: dict[str, Any], rate: dict[str, float]) -> Iterator[Table]:
    """The worst first: on a screen the others may not fit."""
    if seen["causes"]:
        yield ("PROBLEM", "WHAT TO DO"), [(c["what"], c["advice"]) for c in seen["causes"]]
    yield (
        ("FLOW", "STATE", "REVISION", "RUNNING", "LAG", "EVENTS/S"),
        [
            (
                flow["flow"],
                flow["state"],
                flow["revision"],
                f"{flow['running']}/{flow['tasks']}",
                lag_text(flow),
                f"{rate[flow['flow']]:.0f}" if flow["flow"] in rate else None,
            )
            for flow in sorted(seen["flows"], key=lambda flow: -flow["lag"])
        ],
    )
    yield (
        ("NODE", "LIVE", "DESIRED", "TASKS", "NOT RUNNING"),
        [
            (
                row.node,
                row.live,
                row.desired,
                len(row.tasks),
                sum(state != "running" for state in row.tasks.values()),
            )
            for row in sorted(seen["node_rows"], key=_how_well)
        ],
    )


def _how_well(row: NodeRow) -> tuple[bool, int]:
    return row.live, -sum(state != "running" for state in row.tasks.values())


def live(context: CliContext, store: Store) -> None:
    """On a terminal, until Ctrl-C; ZooKeeper may be away meanwhile."""
    from rich.live import Live  # noqa: PLC0415  loads rich
    from rich.text import Text  # noqa: PLC0415  loads rich

    before: dict[str, Any] | None = None
    looked = context.monotonic()
    with Live(Text("looking"), screen=True, auto_refresh=False) as screen:
        try:
            while True:
                try:
                    seen = _look(context, store)
                except UnavailableError as error:
                    screen.update(Text(str(error)), refresh=True)
                else:
                    now = context.monotonic()
                    rate = rates(before, seen, now - looked)
                    screen.update(picture(seen, rate, screen.console.height), refresh=True)
                    before, looked = seen, now
                context.sleep(REFRESH_SECONDS)
        except KeyboardInterrupt:
            return


def picture(seen: dict[str, Any], rate: dict[str, float], lines: int) -> Group:
    """For a screen with so many lines: of each table as many rows as fit, the worst first."""
    from rich.console import Group  # noqa: PLC0415  loads rich
    from rich.text import Text  # noqa: PLC0415  loads rich

    rows = max(3, lines // 4)
    parts: list[RenderableType] = [Text(_headline(seen))]
    for headers, found in _tables(seen, rate):
        parts.append(make_table(headers, found[:rows]))
        if len(found) > rows:
            parts.append(Text(f"and {len(found) - rows} more"))
    return Group(*parts)
