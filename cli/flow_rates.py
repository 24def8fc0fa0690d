"""``flumeng flow choke``, ``flumeng flow counters`` and ``flumeng flow lag``."""

from __future__ import annotations

import click

from cli.context import CliContext, Name, flow_argument, with_operator, with_store
from cli.options import json_option
from cli.output import count, show_json, show_table, warn
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import parse_rate, set_choke
from flumeng.control.queries.counters import CounterRow, flow_counters
from flumeng.control.queries.lag import LagOfFlow, lag_of_flow
from flumeng.control.queries.links import sentence
from flumeng.control.zookeeper import Store


@click.command()
@flow_argument
@click.argument("rate", metavar="RATE|off")
@click.option("--node", type=Name("node"), help="Only there; precedes the limit for all nodes.")
@with_operator
def choke(
    _context: CliContext, operator: Operator, *, name: str, rate: str, node: str | None
) -> None:
    """Limit the bytes per second, such as 10MB, that each node accepts of a flow, while it runs.

    Senders are held back as by a full journal; `flow counters` shows the limits.
    """
    changed = set_choke(operator, name, parse_rate(rate), node)
    where = f" on node {node}" if node else ""
    click.echo(f"choke of flow {name}{where} is {rate}{'' if changed else ' already'}")


@click.command()
@flow_argument
@json_option
@with_store
def counters(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Count events that a flow's sources accepted, cut, refused and dropped, and show its chokes.

    Counted since the node's workers started. A held source accepts nothing, for the given reason.
    """
    counted, silent = flow_counters(store, context.counters, name)
    for away in silent:
        warn(f"node {away} does not answer; it is not counted")
    if as_json:
        show_json(counted)
        return
    for node, rate in counted.chokes.items():
        click.echo(f"choke: {rate:.0f} bytes per second on {node or 'each node'}")
    show_table(
        ("NODE", "SOURCE", "EVENTS", "BYTES", "ELSE"),
        (
            (r.node, r.source, r.counters["events"], r.counters["bytes"], _else(r))
            for r in counted.sources
        ),
    )


def _else(row: CounterRow) -> str:
    """Format nonzero counters except events and bytes, and why the source is held."""
    shown = row.counters.items()
    rest = {key: n for key, n in shown if key not in ("events", "bytes", "held_seconds_total")}
    cells = [f"{key} {number}" for key, number in sorted(rest.items()) if number]
    if row.held_by:
        cells.insert(0, f"held for {row.held_seconds:.0f} s, {row.held_by}")
    return ", ".join(cells)


NAMED = 5


@click.command()
@flow_argument
@json_option
@with_store
def lag(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show how far a flow is behind in each partition: unknown ones first, then furthest behind.

    BEHIND counts events that are not in the sinks yet. SECONDS is the age of the oldest of them,
    relative to Kafka's newest event, or to now where a node stamps events. EVENTS/S is the rate of
    delivery in the last minute. CAUGHT UP IN is the time in seconds until all is delivered, at the
    rates of that minute. "-" stands for unknown values.
    """
    lag_now = lag_of_flow(store, context.accounts, name, context.clock())
    for problem in lag_now.problems:
        warn(problem)
    for away in lag_now.silent:
        warn(f"node {away} does not answer")
    if lag_now.unknown:
        named = ", ".join(lag_now.unknown[:NAMED])
        more = f" and {len(lag_now.unknown) - NAMED} more" if len(lag_now.unknown) > NAMED else ""
        warn(f"no process reports the end of {named}{more}")
    if as_json:
        show_json(lag_now)
        return
    click.echo(_headline(lag_now))
    if lag_now.link is not None:
        click.echo(sentence(lag_now.link))
    _show(lag_now)
    for part in lag_now.parts:
        click.echo(f"\nisolated part: {_headline(part)}")
        _show(part)


def _show(shown: LagOfFlow) -> None:
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
            for row in shown.partitions
        ),
    )  # fmt: skip


def _headline(shown: LagOfFlow) -> str:
    late = sum(bool(row.events) for row in shown.partitions)
    sentences = [
        f"flow {shown.flow} is {shown.state}, {count(shown.events, 'event')} behind in {late} of "
        f"{count(len(shown.partitions), 'partition')}"
    ]
    if shown.unknown:
        sentences.append(f"{len(shown.unknown)} unknown")
    if shown.events and shown.seconds is not None:
        sentences.append(f"the oldest for {shown.seconds:.0f} s")
    if shown.events and shown.trend:
        sentences.append(f"the lag is {shown.trend}")
    if shown.acked_per_second is not None:
        sentences.append(f"{shown.acked_per_second:.0f} events/s")
    if shown.events and shown.caught_up_seconds is not None:
        sentences.append(f"caught up in about {shown.caught_up_seconds:.0f} s")
    return ", ".join(sentences)
