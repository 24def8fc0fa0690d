"""``flumeng flow backfill``: delivers retained messages of Kafka, or stored objects, once more."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import click

from cli.context import CliContext, flow_argument, with_operator
from cli.options import json_option
from cli.output import count, show_json, show_table
from flumeng.control.commands import derived_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import offset_lookup
from flumeng.control.queries.offset_lookup import Point
from flumeng.control.snapshot.partitions import label_of
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError

DISCOVERED = "*@*"
"""Pattern of all partitions of a flow except journals."""


@click.command()
@flow_argument
@click.option(
    "--from",
    "begin",
    required=True,
    metavar="earliest|TIME|OFFSETS",
    help="The start, such as 2026-11-22T08:00:00Z, or orders.3=1200,orders.4=7.",
)
@click.option(
    "--to", "end", required=True, metavar="latest|TIME|OFFSETS", help="The end, exclusive."
)
@click.option(
    "--path",
    "globs",
    multiple=True,
    metavar="GLOB",
    help="Only objects that match; may be given again. Default: the paths of the flow.",
)
@click.option("--as", "own_name", metavar="NAME", help="Its name. [default: FLOW-backfill-N]")
@click.option("--dry-run", is_flag=True, help="Only print the events that it would read.")
@json_option
@with_operator
def backfill(
    context: CliContext,
    operator: Operator,
    *,
    name: str,
    begin: str,
    end: str,
    globs: tuple[str, ...],
    own_name: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Deliver messages of Kafka, or objects, again, without any effect on the live flow.

    A separate flow with the same text and its own acks reads them, and stops when all are read:
    wait for that with `flumeng flow wait NAME --stopped`, then delete it. With offsets only the
    named partitions are read. The time of an object is its write time; objects stay in place.
    """
    store = operator.store
    if derived_flows.backfills_objects(store, name, globs):
        now = datetime.fromtimestamp(context.clock(), UTC).isoformat()
        written = derived_flows.Written(_time(begin, ""), _time(end, now), globs)
        made = own_name or derived_flows.free_name(store, name, "backfill")
        if not dry_run:
            derived_flows.start_objects_backfill(operator, name, made, written)
        if as_json:
            show_json({"flow": made, "backfill_of": name, "written": written})
            return
        since = f"from {written.start} " if written.start else ""
        where = f" at {', '.join(globs)}" if globs else ""
        would = "would read" if dry_run else "reads"
        click.echo(f"flow {made} {would} objects written {since}until {written.end}{where}")
        return
    derived_flows.current_text(store, name)
    first, last = offset_lookup.parse_point(begin), offset_lookup.parse_point(end)
    bounds = derived_flows.within(*_ends(context, store, name, first, last))
    made = own_name or derived_flows.free_name(store, name, "backfill")
    if not dry_run:
        labels = {label_of(partition): ends for partition, ends in bounds.items()}
        derived_flows.start_backfill(operator, name, made, labels)
    if as_json:
        rows = [
            {"partition": partition, "start": start, "end": end, "events": end - start}
            for partition, (start, end) in bounds.items()
        ]
        show_json({"flow": made, "backfill_of": name, "partitions": rows})
        return
    show_table(
        ("PARTITION", "FROM", "TO", "EVENTS"),
        ((partition, *ends, ends[1] - ends[0]) for partition, ends in bounds.items()),
    )
    total = count(sum(end - start for start, end in bounds.values()), "event")
    would = "would read" if dry_run else "reads"
    click.echo(f"flow {made} {would} {total} in {count(len(bounds), 'partition')}")


def _time(text: str, otherwise: str) -> str:
    point = offset_lookup.parse_point(text)
    if isinstance(point, Mapping):
        raise UserError("objects have no offsets: use earliest, latest or a time")
    if isinstance(point, datetime):
        return point.isoformat()
    word = "latest" if otherwise else "earliest"
    if point != word:
        raise UserError(f"{point}: expected {word} or a time")
    return otherwise


def _ends(
    context: CliContext, store: Store, name: str, first: Point, last: Point
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    def resolve(point: Point, *globs: str) -> Mapping[str, int]:
        return offset_lookup.resolve(
            store, name, point, globs, ask=context.accounts, ask_offsets=context.offsets
        ).offsets

    if isinstance(first, Mapping):
        starts = resolve(first)
        ends = resolve(last, *(() if isinstance(last, Mapping) else starts))
    else:
        ends = resolve(last, *(() if isinstance(last, Mapping) else (DISCOVERED,)))
        starts = resolve(first, *ends)
    offset_lookup.require_same(starts, ends)
    return starts, ends
