"""``flumeng schema``: the tree in ZooKeeper."""

from __future__ import annotations

import json
from typing import IO

import click

from cli.context import CliContext, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option, reason_option
from cli.output import show_json, show_table
from flumeng.control.commands import membership
from flumeng.control.commands.cluster import (
    access_problems,
    export_cluster,
    import_cluster,
    init_cluster,
    migrate_cluster,
    pending_migrations,
    repair_cluster,
    repairs,
    verify_cluster,
)
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster, set_access
from flumeng.control.queries import schema as queries
from flumeng.control.zookeeper import Store, tree
from flumeng.platform.errors import UserError
from flumeng.platform.security import process
from zkschema import table

MEMBERS_SHOWN = 20
EXPORT_CHARACTERS = 256 * 1024 * 1024


@click.group(cls=CommandGroup)
def schema() -> None:
    """Create, check, repair, export, import and migrate the tree in ZooKeeper."""


@schema.command()
@json_option
def show(as_json: bool) -> None:
    """Show every kind of znode that this flumeng knows; needs no ZooKeeper."""
    known = queries.znodes()
    if as_json:
        show_json(known)
        return
    show_table(
        ("ZNODE", "RECORD", "LIFETIME", "WRITER", "DOC"),
        ((row.znode, row.record, row.lifetime, row.writer, row.doc) for row in known.znodes),
    )


@schema.command()
@with_store
def init(context: CliContext, store: Store) -> None:
    """Create an empty cluster; an existing one stays as it is."""
    created = init_cluster(context.operator(store, ""))
    if created:
        click.echo(f"created {len(created)} znodes, schema version {table.VERSION}")
    else:
        click.echo("nothing to do: the cluster exists")


@schema.command()
@click.option("--fix", is_flag=True, help="Repair where possible, then check.")
@click.option("--yes", is_flag=True, help="Do not ask before repairs.")
@reason_option
@json_option
@with_store
def verify(
    context: CliContext, store: Store, *, fix: bool, yes: bool, reason: str, as_json: bool
) -> None:
    """Check every znode of a cluster against the schema. Exit code 1 when something is wrong.

    An orphan belongs to something that is gone. Problems without a REMEDY, by --fix, need a person.
    """
    if fix:
        _fix(context, store, yes, reason)
    problems = verify_cluster(store)
    if as_json:
        show_json(problems)
    elif problems:
        show_table(("ZNODE", "PROBLEM", "REMEDY"), ((p.path, p.what, p.remedy) for p in problems))
    else:
        click.echo(f"every znode conforms to schema version {tree.require(store).version}")
    if problems:
        raise SystemExit(1)


@schema.command()
@click.option(
    "--member",
    "admit",
    multiple=True,
    metavar="ROLE:NAME[@FLOW,...]",
    help="Admit this node, operator or subscriber; may be given again. An operator with flows, as "
    "in operator:bob@web,app-*, changes only these, and creates and deletes none.",
)
@click.option(
    "--without", "expel", multiple=True, metavar="ROLE:NAME", help="Expel it: revoke its rights."
)
@with_operator
def secure(
    _context: CliContext, operator: Operator, admit: tuple[str, ...], expel: tuple[str, ...]
) -> None:
    """Give every znode an access list, or change the members of a secured cluster.

    Needs an administrator's certificate (FLUMENG_IDENTITY). Repeat an interrupted command.
    """
    cluster = process.administered_cluster()
    if cluster is None:
        raise UserError(
            "only an administrator with a certificate can secure a cluster: set FLUMENG_IDENTITY "
            "to a directory with admin.pem and admin.key"
        )
    count = secure_cluster(operator, cluster=cluster, admit=admit, expel=expel)
    if admit and not expel:
        click.echo(f"{count} access lists set; admitted: {', '.join(admit)}")
        return
    members = membership.names(operator.store, tree.require(operator.store))
    shown = ", ".join(members[:MEMBERS_SHOWN]) or "none"
    more = len(members) - MEMBERS_SHOWN
    shown += f" and {more} more" if more > 0 else ""
    click.echo(f"{count} access lists set; members: {shown}")


@schema.command()
@with_store
def export(_context: CliContext, store: Store) -> None:
    """Print everything in the cluster as one JSON document, without ephemerals and secrets."""
    show_json(export_cluster(store))


@schema.command(name="import")
@click.argument("file", type=click.File(), metavar="FILE")
@with_operator
def import_(_context: CliContext, operator: Operator, file: IO[str]) -> None:
    """Fill an empty chroot with a document of `flumeng schema export` ("-" is standard input)."""
    text = file.read(EXPORT_CHARACTERS + 1)
    if len(text) > EXPORT_CHARACTERS:
        raise UserError(f"{file.name} is larger than any export ({EXPORT_CHARACTERS} characters)")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UserError(f"{file.name} is not JSON: {error}") from error
    count = import_cluster(operator, document)
    click.echo(f"imported {count} znodes")


@schema.command()
@click.option("--finish", is_flag=True, help="Migrate the tree; older flumengs cannot use it then.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@reason_option
@json_option
@with_store
def migrate(
    context: CliContext, store: Store, *, finish: bool, yes: bool, reason: str, as_json: bool
) -> None:
    """Show the migrations of the tree to the schema version of this flumeng, or carry them out.

    A flumeng can use the tree of the version before it, so hosts are upgraded one by one, while
    everything runs. When no older process is left, --finish migrates the tree.
    """
    pending = pending_migrations(store)
    if finish:
        for migration in pending:
            step = queries.step(migration)
            if not yes:
                question = f"{step}. Older flumengs cannot use it then. Go on?"
                click.confirm(question, abort=True, err=True)
            count = migrate_cluster(context.operator(store, reason), migration)
            click.echo(f"{step} ({count} znodes)", err=as_json)
        pending = []
    if as_json:
        show_json(queries.migrations(store))
        return
    older = queries.older_processes(store)
    if not pending:
        click.echo(f"the cluster has schema version {table.VERSION}: nothing is left to do")
    else:
        for migration in pending:
            click.echo(f"pending: {queries.step(migration)}")
        for process in older:
            click.echo(f"cannot use it: {process}")
        first = "upgrade and restart these, and then" if older else "no older process is live:"
        click.echo(f"{first} `flumeng schema migrate --finish`")


def _fix(context: CliContext, store: Store, yes: bool, reason: str) -> None:
    """Repair the tree after a confirmation; standard output is left to the result of the check."""
    tree_repairs, lists = repairs(store), access_problems(store)
    for repair in tree_repairs:
        click.echo(f"{repair.path}: {repair.what}; {repair.remedy}", err=True)
    for problem in lists:
        click.echo(f"{problem.path}: {problem.what}; {problem.remedy}", err=True)
    count = len(tree_repairs) + len(lists)
    if not count:
        return
    if not yes:
        click.confirm(f"Carry out these {count} repairs?", abort=True, err=True)
    done = len(repair_cluster(context.operator(store, reason), tree_repairs))
    done += set_access(store) if lists else 0
    click.echo(f"{done} of {count} repairs done", err=True)
