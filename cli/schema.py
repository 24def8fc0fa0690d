"""``flumeng schema``: the tree in ZooKeeper."""

from __future__ import annotations

import click

from cli.doors import Doors, with_store
from cli.options import json_option
from cli.output import show_json, show_table
from flumeng.store import Store, tree
from zkschema import table


@click.group()
def schema() -> None:
    """Look at, create and check the tree in ZooKeeper."""


@schema.command()
@json_option
def show(as_json: bool) -> None:
    """Show every kind of znode that this flumeng knows; needs no ZooKeeper."""
    rows = [
        {
            "znode": row.pattern,
            "record": row.record.__name__ if row.record else None,
            "lifetime": row.lifetime,
            "writer": row.writer,
            "size_bytes": row.size_bytes,
            "since": row.since,
            "doc": row.doc,
        }
        for row in table.ROWS
    ]
    if as_json:
        show_json({"version": table.VERSION, "znodes": rows})
        return
    shown = ("znode", "record", "lifetime", "writer", "doc")
    show_table([name.upper() for name in shown], ([row[name] for name in shown] for row in rows))


@schema.command()
@with_store
def init(_doors: Doors, store: Store) -> None:
    """Create an empty cluster; what is there already stays as it is."""
    created = tree.init(store)
    if created:
        click.echo(f"created {len(created)} znodes, schema version {table.VERSION}")
    else:
        click.echo("nothing to do: the cluster is there")


@schema.command()
@json_option
@with_store
def verify(_doors: Doors, store: Store, as_json: bool) -> None:
    """Check every znode of a cluster against the schema. Exit code 1 when something is wrong."""
    problems = tree.verify(store)
    if as_json:
        show_json(problems)
    elif problems:
        show_table(("ZNODE", "PROBLEM"), ((p.path, p.what) for p in problems))
    else:
        click.echo(f"every znode keeps to schema version {table.VERSION}")
    if problems:
        raise SystemExit(1)
