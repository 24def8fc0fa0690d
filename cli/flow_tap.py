"""``flumeng flow tap``."""

from __future__ import annotations

from functools import partial

import click

from cli.context import CliContext, flow_argument, with_operator
from cli.flow_try import quiet_end, write
from cli.output import count, warn
from flumeng.config import parse_flow
from flumeng.control.commands.flows import keep_tap
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import overview

MOST_RATE = 1000


@click.command()
@flow_argument
@click.option(
    "--at",
    metavar="STEP",
    help="Where: sources, filters[1] or 1 or its name, branches[errors], sinks; else at all ends.",
)
@click.option("--where", metavar="SQL", help="Only events for which this is true there.")
@click.option(
    "--rate",
    type=click.IntRange(1, MOST_RATE),
    default=10,
    show_default=True,
    metavar="N",
    help="Show at most N events per second.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N events.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="End after S seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON.")
@with_operator
def tap(
    _context: CliContext,
    operator: Operator,
    *,
    name: str,
    at: str | None,
    where: str | None,
    rate: int,
    limit: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Show events of a running flow as they arrive, before or after its filters.

    The newest events are read from the journals, a few of them each second, and the filters of the
    current revision run on them here, without any effect on the flow. The policy files of nodes
    name the flows that may be tapped, and the audit keeps each tap with its author. The numbers of
    events shown and skipped are printed at the end, on standard error.
    """
    spec = parse_flow(overview.flow(operator.store, name).text)
    from flumeng.agent.dryrun import rendering  # noqa: PLC0415  loads pyarrow
    from flumeng.agent.dryrun import tap as taps  # noqa: PLC0415  loads pyarrow
    from flumeng.agent.dryrun.filter_tree import FilterTree  # noqa: PLC0415  loads pyarrow
    from flumeng.agent.dryrun.local_spark import LocalSpark  # noqa: PLC0415  loads pyarrow
    from flumeng.agent.dryrun.users_code import calls_users_code  # noqa: PLC0415  loads pyarrow
    from flumeng.events.schema import READ_SCHEMA  # noqa: PLC0415  loads pyarrow

    tapped_spec = taps.as_tapped(spec, at, where)
    addresses = taps.servers(operator.store, name)
    render = rendering.json_lines if as_json else rendering.text_lines
    spark = LocalSpark(partial(click.echo, err=True), users_code=calls_users_code(spec))
    with quiet_end(spark):
        tree = FilterTree(tapped_spec.stages, spark, READ_SCHEMA)
        keep_tap(operator, name, at=at, where=where)
        for warning in taps.differences(tapped_spec, len(addresses)):
            warn(warning)
        tapped = taps.Tap(name, addresses)
        shown = 0
        try:
            for output in taps.shown(tapped, tree, tapped_spec.multiline, rate, seconds):
                if isinstance(output, taps.Lost):
                    warn(f"{output.error}: it is not read any more")
                elif not (output.failed and at is not None):
                    events = output.batches[0].slice(0, None if limit is None else limit - shown)
                    write(render(events, taps.end_of(output, tapped_spec) if at is None else None))
                    shown += events.num_rows
                if limit is not None and shown >= limit:
                    break
        finally:
            tapped.stop()
            sampled = f"{tapped.came} received, {tapped.given} of them sampled"
            warn(f"{count(shown, 'event')} shown; {sampled}")
