"""``flumeng ack``: how far each flow has delivered."""

from __future__ import annotations

import click

from cli.doors import Doors, with_store
from cli.options import json_option
from cli.output import show_json, show_table
from flumeng import overview
from flumeng.store import Store


@click.group()
def ack() -> None:
    """See how far each flow has delivered."""


@ack.command(name="list")
@json_option
@with_store
def list_(doors: Doors, store: Store, as_json: bool) -> None:
    """List all acks. LAG counts events that are in a journal and not yet in the sinks.

    END and LAG are unknown ("-") while the journal's node does not answer.
    """
    rows = overview.acks(store, overview.positions(store, doors.ask))
    if as_json:
        show_json(rows)
        return
    show_table(
        ("FLOW", "CURSOR", "PARTITION", "EPOCH", "OFFSET", "END", "LAG"),
        ((r.flow, r.cursor, r.partition, r.epoch, r.offset, r.end, r.lag) for r in rows),
    )
