"""``flumeng journal``: which journals there are and what they hold."""

from __future__ import annotations

import click

from cli.doors import Doors, with_store
from cli.options import json_option
from cli.output import show_json, show_table
from flumeng import overview
from flumeng.store import Store


@click.group()
def journal() -> None:
    """See which journals there are and what they hold."""


@journal.command(name="list")
@json_option
@with_store
def list_(doors: Doors, store: Store, as_json: bool) -> None:
    """List all journals. Events from FLOOR up to SAFE can be read.

    FLOOR and SAFE are unknown ("-") while the journal's node does not answer.
    """
    rows = overview.journals(store, overview.positions(store, doors.ask))
    if as_json:
        show_json(rows)
        return
    show_table(
        ("JOURNAL", "NODE", "FLOW", "TERM", "FLOOR", "SAFE", "CLOSED"),
        ((r.journal, r.node, r.flow, r.term, r.floor, r.safe, r.closed) for r in rows),
    )
