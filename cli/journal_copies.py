"""``flumeng journal promote``, ``move``, ``add-copy``, ``drop-copy``: who holds a journal that is
replicated, and who leads it."""

from __future__ import annotations

import click

from cli.context import CliContext, with_store
from cli.name_argument import Name
from cli.options import reason_option
from flumeng.errors import UserError
from flumeng.operations import copies
from flumeng.replication.membership import node_of
from flumeng.store import Store
from flumeng.views import journals

journal_argument = click.argument("name", metavar="JOURNAL")
node_argument = click.argument("node", type=Name("node"), metavar="NODE")
FOLLOW = "follow with `flumeng journal list`"


@click.command()
@journal_argument
@click.option("--to", type=Name("node"), metavar="NODE", help="Which node; any in sync without.")
@click.option("--unclean", is_flag=True, help="Give up what only copies have that are not live.")
@click.option("--yes", is_flag=True, help="Do not ask before events are given up.")
@reason_option
@with_store
def promote(
    context: CliContext,
    store: Store,
    *,
    name: str,
    to: str | None,
    unclean: bool,
    yes: bool,
    reason: str,
) -> None:
    """Let another copy of JOURNAL lead it: one in sync, so that nothing is lost.

    Masters do so when the node that leads is lost. The journal takes no more events then, and is
    collected to its end. With --unclean a copy leads that is not in sync, when none that is in
    sync is left: events that were answered may be lost.
    """
    if unclean:
        if to is None:
            raise UserError("say with --to which node is to lead")
        change = copies.promote_unclean(store, name, to)
        if not yes:
            click.confirm(f"{_given_up(context, store, change, to)} Go on?", abort=True, err=True)
        copies.carry_out(store, change, **context.audit_fields(reason))
        click.echo(f"node {to} leads journal {name} in another lineage, term {change.after.term}")
        return
    clean = copies.promote(store, name, to)
    if clean is None:
        click.echo(f"node {to} leads journal {name} already")
        return
    copies.carry_out(store, clean, **context.audit_fields(reason))
    after = clean.after
    click.echo(f"node {after.primary} leads journal {name} in term {after.term} ({FOLLOW})")


def _given_up(context: CliContext, store: Store, change: copies.Change, to: str) -> str:
    """What is known of what the copies in sync have and the one of ``to`` has not."""
    nodes = ", ".join(map(node_of, change.before.in_sync))
    end = journals.reached(store, context.accounts, change.name).get(to)
    reaches = f"reaches up to seq {end}" if end is not None else "may lack any number of them"
    return (
        f"Only {nodes} had every answered event of {change.name}, and none of these is live. The "
        f"copy of {to} {reaches}: what comes after that is lost for good, also when those come "
        "back."
    )


@click.command()
@journal_argument
@click.option(
    "--from", "source", required=True, type=Name("node"), metavar="NODE", help="Whose copy."
)
@click.option("--to", "target", required=True, type=Name("node"), metavar="NODE", help="Where to.")
@reason_option
@with_store
def move(
    context: CliContext, store: Store, *, name: str, source: str, target: str, reason: str
) -> None:
    """Let another node hold a copy of JOURNAL; the one before it holds on until that is in sync."""
    change = copies.move(store, name, source, target)
    copies.carry_out(store, change, **context.audit_fields(reason))
    click.echo(f"the copy of {name} goes from {source} to {target} ({FOLLOW})")


@click.command(name="add-copy")
@journal_argument
@node_argument
@reason_option
@with_store
def add_copy(context: CliContext, store: Store, *, name: str, node: str, reason: str) -> None:
    """Let NODE hold a copy of JOURNAL, also when there are as many as its flow wants."""
    change = copies.add_copy(store, name, node)
    if change is None:
        click.echo(f"node {node} holds a copy of {name}, or is to, already")
        return
    copies.carry_out(store, change, **context.audit_fields(reason))
    click.echo(f"node {node} is to hold a copy of {name} ({FOLLOW})")


@click.command(name="drop-copy")
@journal_argument
@node_argument
@click.option("--yes", is_flag=True, help="Do not ask before a journal takes no more events.")
@reason_option
@with_store
def drop_copy(
    context: CliContext, store: Store, *, name: str, node: str, yes: bool, reason: str
) -> None:
    """Let NODE hold no copy of JOURNAL any more, at once.

    When there are fewer than its flow wants then, masters choose a node for another one.
    """
    change = copies.drop_copy(store, name, node)
    wanted = copies.replicas_of(store, change.before.flow)
    left, least = len(change.after.in_sync), wanted.min_in_sync if wanted else 1
    if left < least and left < len(change.before.in_sync) and not yes:
        click.confirm(
            f"{name} would be in sync on {left} of the {least} nodes that its flow wants at "
            "least: it takes no events until another one is. Go on?",
            abort=True,
            err=True,
        )
    copies.carry_out(store, change, **context.audit_fields(reason))
    click.echo(f"node {node} holds no copy of {name} any more")


COMMANDS = (promote, move, add_copy, drop_copy)
