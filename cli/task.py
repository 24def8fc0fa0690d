"""``flumeng task``."""

from __future__ import annotations

import click

from cli.context import CliContext, Name, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import dry_run_option, json_option, timeout_option
from cli.output import show_json, show_rows, show_table
from cli.task_output import TASK_HEADERS, show_counts, show_ended, show_preview, task_cells
from flumeng.control.commands import preview
from flumeng.control.commands.lookup import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.tasks import move_task, restart_task
from flumeng.control.queries import conditions, details, overview
from flumeng.control.queries.acks import positions
from flumeng.control.zookeeper import Store

FOLLOW = "follow with `flumeng task wait {key} --active`"
key_argument = click.argument("key", type=Name("task"), metavar="FLOW/TASK")


@click.group(cls=CommandGroup)
def task() -> None:
    """List tasks with their states; restart and move them."""


@task.command(name="list")
@click.option("--ended", is_flag=True, help="List ended tasks and their outcomes, as far as kept.")
@click.argument("flow", required=False, type=Name("flow"), metavar="[FLOW]")
@json_option
@with_store
def list_(
    _context: CliContext, store: Store, *, ended: bool, flow: str | None, as_json: bool
) -> None:
    """List the tasks of all flows, or of one."""
    if flow is not None:
        require_flow(store, flow)
    if ended:
        show_ended(
            [row for row in overview.ended(store) if flow in (None, row.flow)], as_json=as_json
        )
        return
    rows = [row for row in overview.tasks(store) if flow in (None, row.flow)]
    show_rows(
        rows,
        TASK_HEADERS,
        lambda row: (row.key, *task_cells(row), len(row.partitions), row.why),
        as_json=as_json,
    )


@task.command()
@key_argument
@json_option
@with_store
def show(context: CliContext, store: Store, key: str, as_json: bool) -> None:
    """Show one task: its node, its revision, its position in each partition, and the outcome of its
    events in the last 1, 5 and 15 minutes."""
    where = positions(store, context.ask)
    detail = details.task(store, where, context.counters, key)
    if as_json:
        show_json(detail)
        return
    row = detail.task
    click.echo(f"task {key} ({row.kind}) is {row.state}{': ' + row.why if row.why else ''}")
    if row.state == "failed" and row.node:
        click.echo(f"a traceback, if there is one, is in the log of node {row.node}")
    click.echo(f"node {row.node or '-'}, epoch {row.epoch}")
    if row.shown_standbys:
        click.echo(f"standbys: {row.shown_standbys}")
    applied = "none" if row.revision is None else row.revision
    click.echo(f"revision {row.wanted} is wanted, {applied} is applied")
    if row.partitions:
        show_table(
            ("PARTITION", "EPOCH", "OFFSET", "END", "LAG"),
            ((a.partition, a.epoch, a.offset, a.end, a.lag) for a in detail.acks),
        )
    show_counts(detail.counts)


@task.command()
@key_argument
@dry_run_option
@json_option
@with_operator
def restart(
    _context: CliContext, operator: Operator, *, key: str, dry_run: bool, as_json: bool
) -> None:
    """Restart a task on its node, under a higher epoch; nothing is lost."""
    if dry_run:
        show_preview(preview.restart(operator.store, key), as_json=as_json)
        return
    change = restart_task(operator, key)
    if as_json:
        show_json(change.restarted)
    else:
        click.echo(
            f"task {key} starts again on {change.after.node} under epoch {change.after.epoch} "
            f"({FOLLOW.format(key=key)})"
        )


@task.command()
@key_argument
@click.argument("node", type=Name("node"), metavar="NODE")
@dry_run_option
@json_option
@with_operator
def move(
    _context: CliContext, operator: Operator, *, key: str, node: str, dry_run: bool, as_json: bool
) -> None:
    """Hand a task over to another node: its owner finishes its batch first.

    Masters may move it again later to balance the load.
    """
    if dry_run:
        show_preview(preview.move(operator.store, key, node), as_json=as_json)
        return
    change = move_task(operator, key, node)
    if as_json:
        show_json({"task": key, "node": node, "changed": change is not None})
    elif change is None:
        click.echo(f"task {key} is on {node}, or on its way there, already")
    else:
        before = change.after.node
        click.echo(f"task {key} moves from {before} to {node} ({FOLLOW.format(key=key)})")


@task.command()
@click.argument("keys", nargs=-1, type=Name("task"), metavar="[FLOW/TASK]...")
@click.option(
    "--active",
    "condition",
    flag_value="active",
    required=True,
    help="Until each runs the current revision of its flow.",
)
@timeout_option(30.0)
@with_store
def wait(
    context: CliContext, store: Store, keys: tuple[str, ...], condition: str, timeout: float
) -> None:
    """Wait for tasks, or for all; after the time limit, print the missing parts and exit with 1."""
    assert condition == "active"
    context.wait_for(lambda: conditions.tasks_active(store, keys), timeout)
