"""``flumeng flow handoff``."""

from __future__ import annotations

import click

from cli.context import CliContext, flow_argument, with_operator
from cli.options import json_option, revision_option, timeout_option
from cli.output import count, show_json
from flumeng.control.commands.flow_records import require_flow
from flumeng.control.commands.flows import hand_off
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import conditions
from flumeng.control.queries.acks import acks_of, positions


@click.command()
@flow_argument
@click.option("--wait", is_flag=True, help="Until all that was there when it was asked is acked.")
@timeout_option(300.0)
@revision_option
@json_option
@with_operator
def handoff(
    context: CliContext,
    operator: Operator,
    *,
    name: str,
    wait: bool,
    timeout: float,
    if_revision: int | None,
    as_json: bool,
) -> None:
    """Deliver now what the flow has read, without waiting for its batches to fill.

    Its tasks write and commit what has come so far, once; then batches gather again for
    `batch.seconds`. With --wait: exit code 1 when it is not all delivered in time.
    """
    store = operator.store
    require_flow(store, name)
    ends = {}
    if wait:
        rows = acks_of(store, positions(store, context.ask), name)
        ends = {row.partition: row.end for row in rows if row.end is not None}
        for row in rows:
            if row.end is None:
                click.echo(
                    f"flumeng: nobody says how far {row.partition} reaches: it is not waited for",
                    err=True,
                )
    number = hand_off(operator, name, expect_revision=if_revision)
    if not as_json:
        click.echo(f"flow {name}: its tasks deliver now what has come")
    if wait:
        context.wait_for(lambda: conditions.flow_acked(store, name, ends), timeout)
    if as_json:
        show_json({"flow": name, "handoff": number, "partitions": len(ends)})
    elif wait:
        click.echo(f"delivered, in {count(len(ends), 'partition')}")
