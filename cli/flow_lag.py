"""``flumeng flow lag``."""

from __future__ import annotations

import click

from cli.context import CliContext, flow_argument, with_store
from cli.options import json_option
from cli.output import count, show_json, show_table
from flumeng.control.queries.lag import LagOfFlow, lag_of_flow
from flumeng.control.zookeeper import Store

NAMED = 5


@click.command()
@flow_argument
@json_option
@with_store
def lag(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show how far a flow is behind in each of its partitions, the latest first.

    BEHIND counts events that are there and not in the sinks yet, SECONDS is by how much the oldest
    of them is older than the newest event of Kafka's, or than now where a node stamps events.
    EVENTS/S is what was delivered in the last minute, and CAUGHT UP IN, in seconds, what comes of
    it while as much is added as was in that minute. "-" stands for what nobody knows.
    """
    found = lag_of_flow(store, context.accounts, name, context.clock())
    for problem in found.problems:
        click.echo(f"flumeng: {problem}", err=True)
    for away in found.silent:
        click.echo(f"flumeng: node {away} does not answer", err=True)
    if found.unknown:
        named = ", ".join(found.unknown[:NAMED])
        more = f" and {len(found.unknown) - NAMED} more" if len(found.unknown) > NAMED else ""
        click.echo(f"flumeng: nobody says how far {named}{more} reach", err=True)
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
