"""``flumeng flow choke``, ``flumeng flow counters`` and ``flumeng flow lag``."""

from __future__ import annotations

import click

from cli.context import CliContext, Name, flow_argument, with_operator, with_store
from cli.options import json_option
from cli.output import count, show_json, show_table, warn
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import chokes, set_choke
from flumeng.control.queries.counters import CounterRow
from flumeng.control.queries.counters import counters as counter_rows
from flumeng.control.queries.lag import LagOfFlow, lag_of_flow
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError
from flumeng.platform.options.quantities import size


@click.command()
@flow_argument
@click.argument("rate", metavar="RATE|off")
@click.option("--node", type=Name("node"), help="Only there; counts before what is set for all.")
@with_operator
def choke(
    _context: CliContext, operator: Operator, *, name: str, rate: str, node: str | None
) -> None:
    """Limit the bytes per second, such as 10MB, that each node takes in of a flow, while it runs.

    Senders are held back as by a full journal; `flow counters` shows the limits.
    """
    changed = set_choke(operator, name, _rate(rate), node)
    place = f" on node {node}" if node else ""
    click.echo(f"choke of flow {name}{place} is {rate}{'' if changed else ' already'}")


@click.command()
@flow_argument
@json_option
@with_store
def counters(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show how much the sources of a flow took, cut, refused and dropped, and the flow's chokes.

    Each number counts from the start of the node's workers. A source that is held takes nothing
    now, for the reason that is shown.
    """
    limits = chokes(store, name)
    rows, silent = counter_rows(store, context.counters, name)
    for away in silent:
        warn(f"node {away} does not answer; it is not counted")
    if as_json:
        show_json({"chokes": {node or "": rate for node, rate in limits.items()}, "sources": rows})
        return
    for node, rate in limits.items():
        click.echo(f"choke: {rate:.0f} bytes per second on {node or 'each node'}")
    show_table(
        ("NODE", "SOURCE", "EVENTS", "BYTES", "ELSE"),
        ((r.node, r.source, r.counters["events"], r.counters["bytes"], _else(r)) for r in rows),
    )


def _rate(text: str) -> float | None:
    if text == "off":
        return None
    try:
        return float(size(text.removesuffix("/s")))
    except ValueError as error:
        raise UserError(f"RATE is a size for each second, such as 10MB, or off: {error}") from error


def _else(row: CounterRow) -> str:
    """Formats nonzero counters besides events and bytes, and why the source is held."""
    shown = row.counters.items()
    rest = {key: n for key, n in shown if key not in ("events", "bytes", "held_seconds_total")}
    said = [f"{key} {number}" for key, number in sorted(rest.items()) if number]
    if row.held_by:
        said.insert(0, f"held for {row.held_seconds:.0f} s, {row.held_by}")
    return ", ".join(said)


NAMED = 5


@click.command()
@flow_argument
@json_option
@with_store
def lag(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show how far a flow is behind in each of its partitions, the latest first.

    BEHIND counts events that are there and not in the sinks yet, SECONDS is by how much the oldest
    of them is older than the newest event of Kafka's, or than now where a node stamps events.
    EVENTS/S is the rate of delivery in the last minute. CAUGHT UP IN is the time in seconds until
    all is delivered, if events are delivered and added as in that minute. "-" stands for unknown
    values.
    """
    found = lag_of_flow(store, context.accounts, name, context.clock())
    for problem in found.problems:
        warn(problem)
    for away in found.silent:
        warn(f"node {away} does not answer")
    if found.unknown:
        named = ", ".join(found.unknown[:NAMED])
        more = f" and {len(found.unknown) - NAMED} more" if len(found.unknown) > NAMED else ""
        warn(f"nobody says how far {named}{more} reach")
    if as_json:
        show_json(found)
        return
    click.echo(_headline(found))
    _show(found)
    for part in found.parts:
        click.echo(f"\nisolated part: {_headline(part)}")
        _show(part)


def _show(found: LagOfFlow) -> None:
    show_table(
        (
            "PARTITION", "ACK", "END", "BEHIND", "SECONDS", "EVENTS/S", "CAUGHT UP IN", "PROBLEM",
        ),
        (
            (
                row.partition,
                row.ack,
                row.end,
                row.events,
                row.seconds,
                row.acked_per_second,
                row.caught_up_seconds,
                row.problem,
            )
            for row in found.partitions
        ),
    )  # fmt: skip


def _headline(found: LagOfFlow) -> str:
    late = sum(bool(row.events) for row in found.partitions)
    said = [
        f"flow {found.flow} is {found.state}, {count(found.events, 'event')} behind in {late} of "
        f"{count(len(found.partitions), 'partition')}"
    ]
    if found.unknown:
        said.append(f"{len(found.unknown)} unknown")
    if found.events and found.seconds is not None:
        said.append(f"the oldest for {found.seconds:.0f} s")
    if found.acked_per_second is not None:
        said.append(f"{found.acked_per_second:.0f} events/s")
    if found.events and found.caught_up_seconds is not None:
        said.append(f"caught up in about {found.caught_up_seconds:.0f} s")
    return ", ".join(said)
