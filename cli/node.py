"""``flumeng node``: this host's node, and all nodes."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from cli.doors import Doors, with_store
from cli.options import data_option, json_option, session_option, zk_option
from cli.output import show_json, show_table
from flumeng import logs, overview
from flumeng.errors import UserError
from flumeng.store import Store


@click.group()
def node() -> None:
    """Run this host's node; look at all nodes."""


@node.command(name="list")
@json_option
@with_store
def list_(_doors: Doors, store: Store, as_json: bool) -> None:
    """List all nodes. APPLIED is behind ASSIGNED while a node carries out a change."""
    rows = overview.nodes(store)
    if as_json:
        show_json(rows)
        return
    show_table(
        ("NODE", "LIVE", "DESIRED", "ROLES", "LABELS", "ASSIGNED", "APPLIED", "TASKS"),
        (
            (r.node, r.live, r.desired, r.roles, r.labels, r.assigned, r.applied, r.tasks)
            for r in rows
        ),
    )


@node.command()
@zk_option
@data_option
@click.option("--name", default=socket.gethostname, help="Default: the host's name.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address under which collectors on other nodes reach this one's journals.",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(["ingest", "collect"]),
    default=("ingest", "collect"),
    show_default=True,
    help="What may run here; may be given twice.",
)
@click.option("--zone", default="", help="Where the host stands, such as a rack.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _context, _option, values: _labels(values),
    help="What flows can ask for; may be given again.",
)
@session_option
def run(
    *,
    hosts: str,
    data: Path,
    name: str,
    host: str,
    roles: tuple[str, ...],
    zone: str,
    labels: dict[str, str],
    session_seconds: float,
) -> None:
    """Run this host's node until SIGTERM."""
    from flumeng.node import daemon  # noqa: PLC0415

    logs.to_stderr("node")
    daemon.run(
        daemon.Settings(
            name=name,
            data=data,
            hosts=hosts,
            host=host,
            roles=roles,
            zone=zone,
            labels=labels,
            session_seconds=session_seconds,
        )
    )


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"--label takes KEY=VALUE, not {text!r}")
        labels[key] = value
    return labels
