"""``flumeng node``: this host's node, and all nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cli import options
from cli.context import CliContext, Name, with_operator, with_store
from cli.lazy import CommandGroup, Lazy
from cli.output import show_json, show_table
from cli.sites import Clusters, with_clusters
from cli.task_output import show_preview
from flumeng.agent.node.settings import Settings
from flumeng.config.policy import DEFAULT_FILE
from flumeng.control.commands import nodes, preview
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import conditions, details, overview, timestamps
from flumeng.control.queries.acks import positions
from flumeng.control.zookeeper import Store
from flumeng.platform import logs
from flumeng.platform.options.problems import nearest
from flumeng.platform.security import exposure

HEADERS = (
    "NODE",
    "LIVE",
    "DESIRED",
    "ROLES",
    "LABELS",
    "CAPACITY",
    "ASSIGNED",
    "APPLIED",
    "RUNNING",
)
LAZY = {"enroll": Lazy("cli.secure:enroll", "Issue the certificates of a node's host.")}
name_argument = click.argument("name", type=Name("node"), metavar="NODE")


@click.group(cls=CommandGroup, lazy=LAZY)
def node() -> None:
    """Run this host's node; list, label, drain and remove nodes."""


@node.command(name="list")
@options.json_option
@with_clusters
def list_(_context: CliContext, clusters: Clusters, as_json: bool) -> None:
    """List all nodes. APPLIED is behind ASSIGNED while a node carries out a change."""
    clusters.show_list(
        overview.nodes,
        HEADERS,
        lambda row: (
            row.node,
            row.live,
            row.desired,
            row.roles,
            row.labels,
            _numbers(row.capacity),
            row.assigned,
            row.applied,
            _running(row) if row.live else None,
        ),
        as_json=as_json,
    )


def _running(row: overview.NodeRow) -> str:
    running = sum(state == "running" for state in row.tasks.values())
    return f"{running}/{len(row.tasks)}"


@node.command()
@name_argument
@options.json_option
@with_store
def show(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show one node: its tasks, and the events in its journals that are not in the sinks yet."""
    detail = details.node(store, positions(store, context.ask), name)
    if as_json:
        show_json(detail)
        return
    row = detail.node
    for field, value in (
        ("node", row.node),
        ("live", f"yes, at {row.address or 'no address yet'}" if row.live else "no"),
        ("desired", row.desired),
        ("roles", ", ".join(row.roles)),
        ("zone", row.zone),
        ("labels", ", ".join(f"{key}={value}" for key, value in row.labels.items())),
        ("capacity", _numbers(row.capacity)),
        ("assignment", f"{row.applied} applied of {row.assigned}"),
        ("spark ui", row.spark_ui),
    ):
        click.echo(f"{field:<11}{value or '-'}")
    show_table(
        ("TASK", "KIND", "EPOCH", "STATE", "WHY"),
        ((f"{t.flow}/{t.task}", t.kind, t.epoch, t.state, t.why) for t in detail.tasks),
    )
    show_table(("JOURNAL", "LAG"), detail.journals.items())


@node.command()
@name_argument
@options.json_option
@with_store
def story(_context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show the event log of a node, oldest event first; also of a dead node.

    A node saves its event log every few seconds, and keeps the events from before a restart.
    """
    log = details.event_log(store, name)
    if as_json:
        show_json(log)
        return
    if not log.live:
        click.echo(f"node {name} is not live; this is its last saved event log")
    show_table(
        ("TIME (UTC)", "WHO", "EVENT", "FROM", "TO", "CAUSE"),
        (
            (timestamps.utc(li.time), li.who, li.event, li.before, li.after, li.cause)
            for li in log.lines
        ),
    )


@node.command()
@name_argument
@click.option("--wait", is_flag=True, help="Wait until nothing is left on the node.")
@options.timeout_option(600.0)
@options.dry_run_option
@options.json_option
@with_operator
def drain(
    context: CliContext,
    operator: Operator,
    *,
    name: str,
    wait: bool,
    timeout: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take a node out of use: it gets no work; its tasks are handed off, its events collected.

    Prints the tasks and events left, or that the node is drained. Repeating it changes nothing.
    """
    store = operator.store
    if dry_run:
        planned = preview.drain(store, name)
        show_preview(planned, as_json=as_json)
        return
    nodes.set_node_desired(operator, name, "draining")
    if wait:
        context.wait_for(lambda: conditions.node_drained(store, name), timeout)
    detail = details.node(store, positions(store, context.ask), name)
    if as_json:
        show_json(detail.left)
    elif not detail.left:
        click.echo(f"node {name} is drained (remove it with `flumeng node decommission {name}`)")
    else:
        away = "" if detail.node.live else "; it is not live: start it to collect its journals"
        click.echo(f"node {name} drains: {detail.left} left{away}")
        for line in _left(detail):
            click.echo(f"- {line}")


@node.command()
@name_argument
@with_operator
def undrain(_context: CliContext, operator: Operator, name: str) -> None:
    """Let a node get work again."""
    changed = nodes.set_node_desired(operator, name, "active")
    click.echo(f"node {name} may get work again" if changed else f"node {name} is active already")


@node.command()
@name_argument
@click.option(
    "--discard", is_flag=True, help="The host is gone for good: give up events that only it had."
)
@click.option("--yes", is_flag=True, help="Do not ask before events are given up.")
@with_operator
def decommission(
    _context: CliContext, operator: Operator, *, name: str, discard: bool, yes: bool
) -> None:
    """Remove a drained and stopped node. Exit code 3 if it is not."""
    if discard:
        _confirm_loss(name, nodes.data_loss(operator.store, name), yes=yes)
        nodes.discard_node(operator, name)
    else:
        nodes.decommission_node(operator, name)
    click.echo(f"node {name} is gone")


@node.command()
@name_argument
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
@with_operator
def label(_context: CliContext, operator: Operator, name: str, changes: tuple[str, ...]) -> None:
    """Set labels with KEY=VALUE and remove labels with KEY-."""
    given, taken = options.changes(changes, "a label")
    labels = nodes.label_node(operator, name, given, taken)
    shown = ", ".join(f"{key}={value}" for key, value in labels.items())
    click.echo(f"node {name} has {'labels ' + shown if shown else 'no labels'}")


@node.command()
@name_argument
@click.argument("changes", nargs=-1, required=True, metavar="DIMENSION=NUMBER|DIMENSION-...")
@with_operator
def capacity(_context: CliContext, operator: Operator, name: str, changes: tuple[str, ...]) -> None:
    """Set how much work fits on a node, such as slots=16 mb_per_second=200.

    DIMENSION- removes a limit; all nodes without any count as equally large.
    """
    given, taken = options.changes(changes, "a capacity")
    numbers = options.numbers(given, "capacity")
    fits = nodes.resize_node(operator, name, numbers, taken)
    click.echo(f"node {name} has {'capacity ' + _numbers(fits) if fits else 'no set capacity'}")
    dimensions = overview.dimensions(operator.store) | {"slots"}
    for dimension in sorted({*fits} - dimensions):
        hint = nearest(dimension, sorted(dimensions))
        click.echo(
            f"no flow has a task weight {dimension}, so this limits nothing yet; {hint}", err=True
        )


@node.command()
@options.zk_option
@options.data_option
@click.option("--name", default=socket.gethostname, help="Default: the host's name.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address at which collectors on other nodes reach this node's journals.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_000),
    help="The first port there; further ingest workers, then discovery, the collector and the "
    "gateway, take the next ones. Default: any free ports.",
)
@click.option(
    "--insecure",
    is_flag=True,
    envvar="FLUMENG_INSECURE",
    show_envvar=True,
    help="Serve journals at --host in plain text, without authentication. Else a node without an "
    "identity serves them on loopback only.",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(["ingest", "collect", "replica", "gateway"]),
    default=("ingest", "collect", "replica"),
    show_default=True,
    help="The work of this node: tasks, replicas for other nodes, or serving other sites; may be "
    "given again.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, os.cpu_count()),
    default=1,
    show_default=True,
    help="The number of ingest processes, at most one per core; senders are spread over them.",
)
@click.option("--zone", default="", help="The location of the host, such as a rack.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _context, _option, values: options.given(values, "--label"),
    help="A label that flows can require; may be given again.",
)
@click.option(
    "--capacity",
    multiple=True,
    metavar="DIMENSION=NUMBER",
    callback=lambda _context, _option, values: options.numbers(
        options.given(values, "--capacity"), "capacity"
    ),
    help="How much work fits on it, such as slots=16; may be given again.",
)
@click.option(
    "--warm-collector/--no-warm-collector",
    default=True,
    show_default=True,
    envvar="FLUMENG_WARM_COLLECTOR",
    show_envvar=True,
    help="Keep Spark running without tasks, so that no takeover waits for its start.",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"The policy for flows on this host. Default: {DEFAULT_FILE}, if it exists.",
)
@options.session_option
@options.metrics_option
def run(*, host: str, port: int | None, insecure: bool, **given: Any) -> None:
    """Run this host's node until SIGTERM."""
    from flumeng.agent.node import daemon  # noqa: PLC0415  loads the node

    logs.to_stderr("node")
    if not insecure:
        exposure.require_proof_beyond_loopback(host)
    daemon.run(Settings(host=host, port=port or 0, **given))


def _numbers(capacity: Mapping[str, float]) -> str:
    return ", ".join(f"{key}={number:g}" for key, number in capacity.items())


def _confirm_loss(name: str, lost: list[nodes.DataLoss], *, yes: bool) -> None:
    for row in lost:
        end = "its end is unknown" if row.end is None else f"its end is {row.end}"
        events = "an unknown number of" if row.events is None else row.events
        click.echo(
            f"journal {row.journal} of flow {row.flow}: {events} events are given up "
            f"(acked up to {row.acked} by cursor {row.cursor}, {end})",
            err=True,
        )
    if lost and not yes:
        click.confirm(f"Give these events up, and remove node {name}?", abort=True, err=True)


def _left(detail: details.NodeDetail) -> list[str]:
    states = {f"{task.flow}/{task.task}": task.state for task in detail.tasks}
    tasks = [f"task {key} is {states.get(key, 'stopping')}" for key in detail.left.tasks]
    journals = [
        f"journal {journal}: {'?' if lag is None else lag} events are not in the sinks yet"
        for journal, lag in detail.journals.items()
    ]
    return [*tasks, *journals]
