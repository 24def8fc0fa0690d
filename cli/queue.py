"""``flumeng queue``: what waits in the work queues of flows, and what could not be read."""

from __future__ import annotations

import click

from cli.context import CliContext, with_store
from cli.name_argument import Name
from cli.options import json_option, reason_option
from cli.output import count, show_json, show_table
from flumeng.operations.flow_records import require_flow
from flumeng.operations.queues import decide
from flumeng.store import Store
from flumeng.views import moments, queues
from flumeng.views.reading import Reading

SHOWN = 100


@click.group()
def queue() -> None:
    """See the items that wait in work queues or failed; read them again, or give them up."""


@queue.command(name="list")
@click.argument("flow", required=False, type=Name("flow"), metavar="[FLOW]")
@json_option
@with_store
def list_(context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List the lanes of all queues, or of a flow's: what waits in them, and what is done.

    OLDEST is when the oldest object that waits was written. AT is the object that is read now, or
    next, and in it the POSITION up to which its events are acked.
    """
    del context
    reading = Reading.of(store)
    if flow is not None:
        require_flow(store, flow)
    rows = queues.lanes(reading, [flow] if flow else queues.flows_with_queues(reading))
    if as_json:
        show_json(rows)
        return
    show_table(
        (
            "FLOW",
            "LANE",
            "NODE",
            "WAITING",
            "BYTES",
            "OLDEST",
            "DONE",
            "FAILED",
            "AT",
            "POSITION",
        ),
        (
            (
                row.flow,
                row.lane,
                row.node,
                row.waiting,
                row.bytes,
                None if row.oldest is None else moments.utc(row.oldest),
                row.done,
                row.failed,
                row.at,
                row.position if row.at else None,
            )
            for row in rows
        ),
    )


@queue.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW")
@click.option(
    "--limit", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="How many items."
)
@json_option
@with_store
def show(context: CliContext, store: Store, flow: str, limit: int, as_json: bool) -> None:
    """Show the items of a flow's queue: first those that failed, then those that wait."""
    del context
    require_flow(store, flow)
    rows = queues.listed_items(Reading.of(store), flow, limit)
    if as_json:
        show_json(rows)
        return
    show_table(
        ("ITEM", "STATE", "LOCATION", "BYTES", "MODIFIED", "POSITION", "WHY"),
        (
            (
                row.item,
                row.state,
                row.location,
                row.bytes,
                moments.utc(row.modified),
                row.position or None,
                row.why,
            )
            for row in rows
        ),
    )


@queue.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW")
@click.argument("items", nargs=-1, metavar="[ITEM]...")
@click.option("--all", "every", is_flag=True, help="All that failed.")
@reason_option
@with_store
def retry(
    context: CliContext,
    store: Store,
    flow: str,
    items: tuple[str, ...],
    *,
    every: bool,
    reason: str,
) -> None:
    """Read items that failed again, from where they could not be read.

    What was read of them is not read again, so nothing comes twice.
    """
    _require_choice(items, every=every)
    require_flow(store, flow)
    names = decide(store, flow, items, "retry", **context.audit_fields(reason))
    click.echo(f"{count(len(names), 'item')} of flow {flow} will be read again")


@queue.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW")
@click.argument("items", nargs=-1, metavar="[ITEM]...")
@click.option("--all", "every", is_flag=True, help="All that failed.")
@reason_option
@with_store
def skip(
    context: CliContext,
    store: Store,
    flow: str,
    items: tuple[str, ...],
    *,
    every: bool,
    reason: str,
) -> None:
    """Give up items that failed: what was not read of them never is."""
    _require_choice(items, every=every)
    require_flow(store, flow)
    names = decide(store, flow, items, "skip", **context.audit_fields(reason))
    click.echo(f"{count(len(names), 'item')} of flow {flow} are given up")


def _require_choice(items: tuple[str, ...], *, every: bool) -> None:
    if bool(items) == every:
        raise click.UsageError("name the items, as `flumeng queue show` does, or say --all")
