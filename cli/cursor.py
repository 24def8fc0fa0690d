"""``flumeng cursor``: cursors of other readers at flows."""

from __future__ import annotations

import click

from cli.context import CliContext, Name, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option
from cli.output import show_json, show_table
from flumeng.control.commands.cursors import delete_cursor
from flumeng.control.commands.flow_records import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import moments
from flumeng.control.queries.acks import cursors, positions
from flumeng.control.zookeeper import Store


@click.group(cls=CommandGroup)
def cursor() -> None:
    """See who reads flows besides themselves; end cursors of readers that are no flows."""


@cursor.command(name="list")
@click.argument("flow", required=False, type=Name("flow"), metavar="[FLOW]")
@json_option
@with_store
def list_(context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List the cursors at all flows, or at one, that are not their own.

    Journals keep what a cursor has not read: LAG counts these events. That of a flow keeps them for
    as long as the flow is there, that of another reader UNTIL a time, which its reader moves on.
    """
    if flow is not None:
        require_flow(store, flow)
    where = positions(store, context.ask)
    rows = [row for row in cursors(store, where) if flow in (None, row.flow)]
    if as_json:
        show_json(rows)
        return
    show_table(
        ("FLOW", "CURSOR", "READER", "UNTIL", "JOURNALS", "LAG", "PROBLEM"),
        (
            (
                row.flow,
                row.cursor,
                row.reader,
                None if row.until is None else moments.utc(row.until),
                row.journals,
                row.lag,
                row.problem,
            )
            for row in rows
        ),
    )


@cursor.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW")
@click.argument("name", metavar="CURSOR")
@with_operator
def delete(_context: CliContext, operator: Operator, flow: str, name: str) -> None:
    """Keep nothing more for a reader that is no flow: journals let go what only it had not read.

    A reader that still runs fails with its next step. The cursor of a flow goes with that flow.
    """
    delete_cursor(operator, flow, name)
    click.echo(f"cursor {name} of flow {flow} is gone: nothing is kept for it any more")
