"""``flumeng cursor``: readers of flows that are not flows here, and leases of other sites."""

from __future__ import annotations

import click

from cli.context import CliContext, Name, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option
from cli.output import show_json, show_rows, show_table, warn
from cli.status import used
from flumeng.control.commands import acks, lease_breaks
from flumeng.control.commands.lookup import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import cursors, lag, timestamps
from flumeng.control.queries.acks import Positions
from flumeng.control.queries.cursors import HoldingCursor
from flumeng.control.queries.fan_out import ask_all
from flumeng.control.queries.links import amount, span
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.queries.zookeeper_clock import zookeeper_now
from flumeng.control.zookeeper import Store
from flumeng.journal.serving.account import Account
from zkschema.records import Break

flow_argument = click.argument("flow", type=Name("flow"), metavar="FLOW")
cursor_argument = click.argument("name", metavar="CURSOR")


@click.group(cls=CommandGroup)
def cursor() -> None:
    """List readers of flows that are not flows here, such as Spark jobs and leases of other sites;
    end them."""


@cursor.command(name="list")
@click.argument("flow", required=False, type=Name("flow"), metavar="[FLOW]")
@json_option
@with_store
def list_(context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List the cursors of other readers of all flows, or of one.

    Journals keep events that a cursor has not read; LAG counts them. The cursor of a flow keeps
    them as long as that flow exists. Another reader has a lease, and its cursor ends when AGE, the
    time since the last renewal, reaches KEPT FOR. USED is the share of that time, and the largest
    share of a journal's room.
    """
    if flow is not None:
        require_flow(store, flow)
    cache, where, accounts = _asked(context, store)
    found = cursors.cursors(cache, where, accounts, zookeeper_now(cache, context.clock()))
    rows = [row for row in found if flow in (None, row.flow)]
    if as_json:
        show_json([row.listed() for row in rows])
        return
    show_rows(
        rows,
        (
            "FLOW",
            "CURSOR",
            "READER",
            "AGE",
            "KEPT FOR",
            "JOURNALS",
            "LAG",
            "BYTES",
            "USED",
            "PROBLEM",
        ),
        lambda row: (
            row.flow,
            row.cursor,
            row.reader,
            None if row.age_seconds is None else span(row.age_seconds),
            None if row.keep_seconds is None else span(row.keep_seconds),
            row.journals,
            row.lag,
            None if row.bytes is None else amount(row.bytes),
            used(row.time, row.room),
            row.problem,
        ),
        as_json=False,
    )


@cursor.command()
@flow_argument
@cursor_argument
@json_option
@with_store
def show(context: CliContext, store: Store, flow: str, name: str, as_json: bool) -> None:
    """Show one cursor: its lease, what it keeps of each journal, and what it has lost."""
    require_flow(store, flow)
    cache, where, accounts = _asked(context, store)
    now = zookeeper_now(cache, context.clock())
    detail = cursors.detail(cache, where, accounts, now, (flow, name))
    row, broke = detail.cursor, detail.broke
    if as_json:
        show_json(detail)
        return
    click.echo(f"cursor {name} of flow {flow}")
    if row is None:
        click.echo("it has ended")
    else:
        _show_row(row)
    if broke is not None:
        _show_break(broke, flow, name)


def _show_row(row: HoldingCursor) -> None:
    lines = [("reader", row.reader or "-")]
    if row.age_seconds is not None and row.keep_seconds is not None:
        lines += [
            (
                "renewed",
                f"{span(row.age_seconds)} ago, {row.time or 0.0:.0%} of {span(row.keep_seconds)}",
            ),
            ("ends", f"{timestamps.utc(row.until or 0.0)} UTC, unless it is renewed"),
        ]
    held = "unknown" if row.lag is None else f"{row.lag} events"
    held += f", {amount(row.bytes)}" if row.bytes is not None else ""
    held += f", {row.room:.0%} of a journal's room" if row.room is not None else ""
    for title, text in (*lines, ("keeps", held)):
        click.echo(f"{title:<9}{text}")
    if row.problem:
        warn(row.problem)
    show_table(
        ("JOURNAL", "ACK", "FLOOR", "END", "EVENTS", "BYTES", "ROOM"),
        (
            (
                each.journal,
                each.ack,
                each.floor,
                each.end,
                each.events,
                None if each.bytes is None else amount(each.bytes),
                None if each.room is None else f"{each.room:.0%}",
            )
            for each in row.held
        ),
    )


def _show_break(broke: Break, flow: str, name: str) -> None:
    away = "; its reader has not returned" if broke.away else ""
    click.echo(
        f"lost     {lease_breaks.counted(broke)}, given up at {timestamps.utc(broke.time)} UTC: "
        f"{broke.why}{away}"
    )
    show_table(
        ("JOURNAL", "FROM", "TO", "EVENTS"),
        ((gap.journal, gap.start, gap.end - 1, gap.end - gap.start) for gap in broke.gaps),
    )
    click.echo(f"`flumeng cursor acknowledge {flow} {name}` ends the report of this")


@cursor.command()
@flow_argument
@cursor_argument
@with_operator
def end(_context: CliContext, operator: Operator, flow: str, name: str) -> None:
    """End the cursor of a reader that is not a flow here: journals drop events that only it had not
    read.

    A reader at another site gets your name and --reason, and begins again behind what it has lost.
    Any other reader fails at its next step. The cursor of a flow is deleted with that flow.
    """
    acks.delete_cursor(operator, flow, name)
    click.echo(f"cursor {name} of flow {flow} has ended: no events are kept for it any more")


@cursor.command(name="delete", hidden=True, deprecated=True)
@flow_argument
@cursor_argument
@with_operator
def delete_(_context: CliContext, operator: Operator, flow: str, name: str) -> None:
    """See `flumeng cursor end`."""
    acks.delete_cursor(operator, flow, name)
    click.echo(f"cursor {name} of flow {flow} is deleted: no events are kept for it any more")


@cursor.command()
@flow_argument
@click.argument("name", required=False, metavar="[CURSOR]")
@with_operator
def acknowledge(_context: CliContext, operator: Operator, flow: str, name: str | None) -> None:
    """Stop reporting events that were given up before they were read.

    With CURSOR, of a lease of another site on FLOW. Without, of FLOW's own lease at another site.
    """
    if name is None:
        broke = lease_breaks.acknowledge_own(operator, flow)
    else:
        broke = lease_breaks.acknowledge(operator, flow, name)
    click.echo(f"the loss of {lease_breaks.counted(broke)} is no longer reported")


def _asked(context: CliContext, store: Store) -> tuple[ReadCache, Positions, dict[str, Account]]:
    cache = ReadCache.of(store)
    accounts, silent = ask_all(cache, context.accounts)
    return cache, Positions(accounts, silent), lag.newest(accounts)
