"""``flumeng queue``: items that wait in work queues, and items that failed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import click

from cli.context import CliContext, Name, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option
from cli.output import count, show_json, show_rows, show_table, warn
from flumeng.control.commands.lookup import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.queues import decide
from flumeng.control.queries import fan_out, lag, queues, timestamps
from flumeng.control.queries.causes import of_unreadable
from flumeng.control.queries.queues import LaneRow, QueueRow, lanes_of, listed_items
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Store

SHOWN = 100


@click.group(cls=CommandGroup)
def queue() -> None:
    """List waiting and failed items of work queues; retry or skip failed ones."""


@queue.command(name="list")
@click.argument("flow", required=False, type=Name("flow"), metavar="[FLOW]")
@json_option
@with_store
def list_(context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List all queues, or the lanes of a flow's, with waiting, running, done and failed items.

    OLDEST is the write time of the oldest waiting item. ITEMS/S were done in the last minute, and
    DONE IN is the time in seconds until all are done, at the rates of that minute. AT is the item
    that a lane's NODE reads now if it is RUNNING, or reads next, with the POSITION up to which its
    events are acked, SINCE then. "-" stands for unknown values.
    """
    cache = ReadCache.of(store)
    state = require_flow(store, flow).value.state if flow is not None else ""
    accounts_by_node, silent = fan_out.ask_all(cache, context.accounts)
    accounts = lag.newest(accounts_by_node)
    whole = queues.overview(cache, accounts) if flow is None else []
    lanes = lanes_of(cache, [flow], accounts) if flow is not None else []
    for cause in of_unreadable(cache.unreadable.values()):
        warn(cause.what)
    for away in silent:
        warn(f"node {away} does not answer")
    if as_json:
        show_json(whole or lanes)
    elif flow is None:
        _show_queues(whole)
    elif lanes:
        _show_lanes(lanes, state)


def _show_queues(rows: Sequence[QueueRow]) -> None:
    show_table(
        (
            "FLOW", "STATE", "LANES", "WAITING", "RUNNING", "BYTES", "OLDEST", "DONE", "FAILED",
            "ITEMS/S", "DONE IN", "PROBLEM",
        ),
        (
            (
                row.flow,
                row.state,
                row.lanes,
                row.waiting,
                row.running,
                row.bytes,
                _utc(row.oldest),
                row.done,
                row.failed,
                row.items_per_second,
                row.end_seconds,
                row.problem,
            )
            for row in rows
        ),
    )  # fmt: skip


def _show_lanes(rows: Sequence[LaneRow], state: str) -> None:
    click.echo(_headline(queues.totals(rows, state)))
    show_table(
        (
            "LANE", "NODE", "RUNNING", "WAITING", "BYTES", "OLDEST", "DONE", "FAILED", "ITEMS/S",
            "DONE IN", "AT", "POSITION", "SINCE", "PROBLEM",
        ),
        (
            (
                row.lane,
                row.node,
                row.running,
                row.waiting,
                row.bytes,
                _utc(row.oldest),
                row.done,
                row.failed,
                row.items_per_second,
                row.end_seconds,
                row.at,
                row.position if row.at else None,
                _utc(row.since),
                row.problem,
            )
            for row in rows
        ),
    )  # fmt: skip


def _headline(row: QueueRow) -> str:
    sentences = [
        f"flow {row.flow} is {row.state}, {count(row.waiting, 'item')} wait in "
        f"{count(row.lanes, 'lane')}, {row.running} of them read now"
    ]
    if row.bytes:
        sentences.append(f"{row.bytes} bytes")
    sentences += [f"{row.done} done", f"{row.failed} failed"]
    if row.waiting and row.end_seconds is not None:
        sentences.append(f"done in about {row.end_seconds:.0f} s")
    return ", ".join(sentences)


def _utc(seconds: float | None) -> str | None:
    return None if seconds is None else timestamps.utc(seconds)


@queue.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW")
@click.option(
    "--limit", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="How many items."
)
@json_option
@with_store
def show(_context: CliContext, store: Store, flow: str, limit: int, as_json: bool) -> None:
    """Show the items of a flow's queue: failed, running, then waiting ones.

    NODE reads the item; SINCE is the time of the last ack of its lane.
    """
    require_flow(store, flow)
    cache = ReadCache.of(store)
    rows = listed_items(cache, flow, limit)
    for cause in of_unreadable(cache.unreadable.values()):
        warn(cause.what)
    show_rows(
        rows,
        ("ITEM", "STATE", "LOCATION", "BYTES", "MODIFIED", "POSITION", "NODE", "SINCE", "WHY"),
        lambda row: (
            row.item,
            row.state,
            row.location,
            row.bytes,
            timestamps.utc(row.modified),
            row.position or None,
            row.node,
            _utc(row.since),
            row.why,
        ),
        as_json=as_json,
    )


def _decides(command: Callable[..., None]) -> Callable[..., None]:
    """Add options that choose failed items; the command gets operator, flow, items (none: all)."""

    @click.argument("flow", type=Name("flow"), metavar="FLOW")
    @click.argument("items", nargs=-1, metavar="[ITEM]...")
    @click.option("--all", "every", is_flag=True, help="All failed items.")
    @with_operator
    @functools.wraps(command)
    def chosen(
        _context: CliContext, operator: Operator, flow: str, items: tuple[str, ...], *, every: bool
    ) -> None:
        if bool(items) == every:
            raise click.UsageError("name the items, as `flumeng queue show` does, or use --all")
        require_flow(operator.store, flow)
        command(operator, flow, items)

    return chosen


@queue.command()
@_decides
def retry(operator: Operator, flow: str, items: tuple[str, ...]) -> None:
    """Read failed items again, from the position where they failed.

    Parts that were read are not read again, so nothing is duplicated.
    """
    names = decide(operator, flow, items, "retry")
    click.echo(f"{count(len(names), 'item')} of flow {flow} will be read again")


@queue.command()
@_decides
def skip(operator: Operator, flow: str, items: tuple[str, ...]) -> None:
    """Give up failed items: their unread parts are never read."""
    names = decide(operator, flow, items, "skip")
    click.echo(f"{count(len(names), 'item')} of flow {flow} are given up")
