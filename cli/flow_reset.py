"""``flumeng flow reset``: let a resting flow go on from another offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from cli.context import CliContext, flow_argument, with_operator
from cli.options import json_option, revision_option, timeout_option
from cli.output import count, show_json, show_table
from flumeng.control.commands.acks import (
    Reset,
    accept,
    require_resting,
    reset_acks,
    resets,
    still_collected,
)
from flumeng.control.commands.flow_records import expect_current
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import points
from flumeng.control.queries.points import Resolved


@click.command()
@flow_argument
@click.option(
    "--to",
    "point",
    required=True,
    metavar="earliest|latest|TIME|OFFSETS",
    help="Where it goes on: 2026-11-22T08:00:00Z, or orders.3=1200,orders.4=7.",
)
@click.option(
    "--partitions",
    "globs",
    multiple=True,
    metavar="GLOB",
    help="Only partitions like that; may be given again. Without it, all.",
)
@click.option("--yes", is_flag=True, help="Do not ask before something is skipped or repeated.")
@timeout_option(30.0)
@revision_option
@json_option
@with_operator
def reset(
    context: CliContext,
    operator: Operator,
    *,
    name: str,
    point: str,
    globs: tuple[str, ...],
    yes: bool,
    timeout: float,
    if_revision: int | None,
    as_json: bool,
) -> None:
    """Let a paused or stopped flow go on from other offsets.

    What lies before is skipped, what lies behind is delivered again: it shows how much, and asks.
    It waits until the flow's tasks have let go (--timeout). A batch that is decided and not
    finished refuses it. `flumeng flow resume` lets the flow go on.

    A topic of Kafka that was deleted and made anew is read only after a reset to earliest, latest
    or a time has accepted it.
    """
    store = operator.store
    wanted = points.parse_point(point)
    expect_current(name, require_resting(store, name), if_revision)
    context.wait_for(lambda: still_collected(store, name), timeout)
    found = points.resolve(
        store, name, wanted, globs, ask=context.accounts, ask_offsets=context.offsets
    )
    changes = resets(store, name, found.offsets)
    if not as_json:
        _show(name, changes, found)
    if (changes or found.accepted) and not yes:
        click.confirm(f"{_total(changes)}. Go on?", abort=True, err=True)
    if changes:
        changes = reset_acks(operator, name, found.offsets)
    if found.accepted:
        accept(operator, name, found.accepted)
    if as_json:
        rows = [
            {**asdict(one), "skipped": one.skipped, "repeated": one.repeated} for one in changes
        ]
        show_json(
            {
                "flow": name,
                "partitions": len(found.offsets),
                "resets": rows,
                "accepted": found.accepted,
            }
        )
    elif changes or found.accepted:
        click.echo(f"flow {name}: {_total(changes)} (go on with `flumeng flow resume {name}`)")


def _show(name: str, changes: Sequence[Reset], found: Resolved) -> None:
    for what, to in found.accepted.items():
        click.echo(f"{what} is accepted, and read from {to} on")
    if not changes:
        if found.offsets or not found.accepted:
            click.echo(f"flow {name} is there already, in {count(len(found.offsets), 'partition')}")
        return
    show_table(
        ("PARTITION", "ACK", "TO", "SKIPPED", "REPEATED"),
        ((r.partition, r.before, r.after, r.skipped, r.repeated) for r in changes),
    )


def _total(changes: Sequence[Reset]) -> str:
    skipped, repeated = sum(r.skipped for r in changes), sum(r.repeated for r in changes)
    return (
        f"{count(skipped, 'event')} skipped and {repeated} repeated in "
        f"{count(len(changes), 'partition')}"
    )
