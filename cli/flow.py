"""``flumeng flow``: the flows of a cluster, and flow files."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import click

from cli.doors import Doors, with_store
from cli.options import json_option, revision_option
from cli.output import show_json, show_table
from flumeng import operations, overview
from flumeng.errors import UserError
from flumeng.flow_files import FlowFilesError, read_flows
from flumeng.store import Store

files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)


@click.group()
def flow() -> None:
    """Validate, apply, look at and delete flows."""


@flow.command()
@files_argument
@json_option
def validate(files: tuple[Path, ...], as_json: bool) -> None:
    """Check flow files: all problems of all files at once. Exit code 2 when there are any."""
    try:
        found = read_flows(files)
    except FlowFilesError as error:
        if not as_json:
            raise
        show_json([{"file": str(path), **asdict(problem)} for path, problem in error.problems])
        raise SystemExit(2) from error
    if as_json:
        show_json([])
        return
    for file in found:
        click.echo(f"{file.path}: flow {file.spec.flow} is valid")


@flow.command()
@files_argument
@click.option("--reason", default="", help="Why; kept with the revision.")
@revision_option
@with_store
def apply(
    doors: Doors, store: Store, files: tuple[Path, ...], reason: str, if_revision: int | None
) -> None:
    """Make each file the current revision of its flow; a new flow starts to run.

    When any file has a problem, nothing is written.
    """
    if if_revision is not None and len(files) > 1:
        raise UserError("--if-revision goes with one file: apply the files one by one")
    for file in read_flows(files):
        applied = operations.apply_flow(
            store,
            file.text,
            author=doors.who(),
            reason=reason,
            now=doors.clock(),
            expect_revision=if_revision,
        )
        unchanged = "" if applied.changed else " (unchanged)"
        click.echo(f"flow {applied.flow} revision {applied.revision}{unchanged}")


@flow.command(name="list")
@json_option
@with_store
def list_(_doors: Doors, store: Store, as_json: bool) -> None:
    """List all flows."""
    rows = overview.flows(store)
    if as_json:
        show_json(rows)
        return
    show_table(
        ("FLOW", "STATE", "REVISION", "DELIVERY", "SOURCES", "SINKS", "RUNNING"),
        (
            (
                row.flow,
                row.state,
                row.revision,
                row.delivery,
                row.sources,
                row.sinks,
                f"{sum(task.state == 'running' for task in row.tasks)}/{len(row.tasks)}",
            )
            for row in rows
        ),
    )


@flow.command()
@click.argument("name", metavar="FLOW")
@json_option
@with_store
def show(_doors: Doors, store: Store, name: str, as_json: bool) -> None:
    """Show one flow: its text, who applied it, and where its tasks run."""
    found = overview.flow(store, name)
    if as_json:
        show_json(found)
        return
    when = datetime.fromtimestamp(found.time, timezone.utc)
    reason = f": {found.reason}" if found.reason else ""
    click.echo(f"flow {found.flow} is {found.state}")
    click.echo(f"revision {found.revision} by {found.author}, {when:%Y-%m-%d %H:%M:%S} UTC{reason}")
    click.echo(f"\n{found.text.strip()}\n")
    show_table(
        ("TASK", "KIND", "NODE", "EPOCH", "STATE", "PARTITIONS", "WHY"),
        ((t.task, t.kind, t.node, t.epoch, t.state, t.partitions, t.why) for t in found.tasks),
    )


@flow.command()
@click.argument("name", metavar="FLOW")
@click.option("--discard", is_flag=True, help="Drop events that are not in the sinks yet.")
@click.option("--yes", is_flag=True, help="Do not ask before events are dropped.")
@click.option("--reason", default="", help="Why; kept in the audit.")
@revision_option
@with_store
def delete(
    doors: Doors,
    store: Store,
    *,
    name: str,
    discard: bool,
    yes: bool,
    reason: str,
    if_revision: int | None,
) -> None:
    """Delete a flow, once everything it accepted is in its sinks."""
    operations.require_flow(store, name)
    if discard and not yes:
        click.confirm(
            f"Events of flow {name} that are not in its sinks yet will be lost. Go on?", abort=True
        )
    changed = operations.delete_flow(
        store,
        name,
        author=doors.who(),
        reason=reason,
        now=doors.clock(),
        discard=discard,
        expect_revision=if_revision,
    )
    if not changed:
        click.echo(f"flow {name} is being deleted already")
    elif discard:
        click.echo(f"flow {name}: it stops now; events not in its sinks are dropped; then it goes")
    else:
        click.echo(
            f"flow {name}: its sources stop now, its journals are collected to their end, then it "
            "goes (follow with `flumeng ack list`)"
        )
