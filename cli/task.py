"""``flumeng task``: what runs where."""

from __future__ import annotations

import click

from cli.doors import Doors, with_store
from cli.names import Name
from cli.options import json_option, timeout_option
from cli.output import show_json, show_table
from flumeng import conditions, details, overview
from flumeng.store import Store


@click.group()
def task() -> None:
    """See which tasks there are and how they do."""


@task.command(name="list")
@json_option
@with_store
def list_(_doors: Doors, store: Store, as_json: bool) -> None:
    """List all tasks of all flows."""
    rows = overview.tasks(store)
    if as_json:
        show_json(rows)
        return
    show_table(
        ("TASK", "KIND", "NODE", "EPOCH", "STATE", "JOURNALS", "WHY"),
        (
            (f"{r.flow}/{r.task}", r.kind, r.node, r.epoch, r.state, len(r.partitions), r.why)
            for r in rows
        ),
    )


@task.command()
@click.argument("key", type=Name("task"), metavar="FLOW/TASK")
@json_option
@with_store
def show(doors: Doors, store: Store, key: str, as_json: bool) -> None:
    """Show one task: where it runs, which revision, and how far it is in each journal."""
    found = details.task(store, overview.positions(store, doors.ask), key)
    if as_json:
        show_json(found)
        return
    row = found.task
    click.echo(f"task {key} ({row.kind}) is {row.state}{': ' + row.why if row.why else ''}")
    click.echo(f"node {row.node or '-'}, epoch {row.epoch}")
    applied = "none" if found.revision is None else found.revision
    click.echo(f"revision {found.wanted_revision} is wanted, {applied} is applied")
    if row.partitions:
        show_table(
            ("JOURNAL", "EPOCH", "OFFSET", "END", "LAG"),
            ((a.partition, a.epoch, a.offset, a.end, a.lag) for a in found.acks),
        )


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
def wait(doors: Doors, store: Store, keys: tuple[str, ...], condition: str, timeout: float) -> None:
    """Wait for tasks, or for all; exit code 1, and what is missing, when the time is up."""
    assert condition == "active"
    doors.wait_for(lambda: conditions.tasks_active(store, keys), timeout)
