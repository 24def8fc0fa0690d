"""``flumeng journal promote``, ``move``, ``add-replica``, ``drop-replica``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from cli.context import CliContext, Name, with_operator
from flumeng.control.commands import replicas
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import journals
from flumeng.control.zookeeper import Store
from flumeng.journal.replication.membership import node_of
from flumeng.platform.errors import ConflictError, UserError

journal_argument = click.argument("name", metavar="JOURNAL")
node_argument = click.argument("node", type=Name("node"), metavar="NODE")
FOLLOW = "follow with `flumeng journal list`"


@click.command()
@journal_argument
@click.option("--to", type=Name("node"), metavar="NODE", help="Which node; any in sync without.")
@click.option("--unclean", is_flag=True, help="Give up what only replicas have that are not live.")
@click.option("--yes", is_flag=True, help="Do not ask before events are given up.")
@with_operator
def promote(
    context: CliContext, operator: Operator, *, name: str, to: str | None, unclean: bool, yes: bool
) -> None:
    """Let another replica of JOURNAL lead it: one in sync, so that nothing is lost.

    Masters do so when the node that leads is lost. The journal takes no more events then, and is
    collected to its end. With --unclean a replica leads that is not in sync, when none that is in
    sync is left: events that were answered may be lost.
    """
    store = operator.store
    if unclean:
        if to is None:
            raise UserError("say with --to which node is to lead")
        change = replicas.promote_unclean(store, name, to)
        given_up = _given_up(context, store, change, to)
        if not yes:
            click.confirm(f"{given_up} Go on?", abort=True, err=True)
        replicas.carry_out(operator, change)
        click.echo(f"node {to} leads journal {name} in another lineage, term {change.after.term}")
        return
    clean = replicas.promote(store, name, to)
    if clean is None:
        click.echo(f"node {to} leads journal {name} already")
        return
    replicas.carry_out(operator, clean)
    after = clean.after
    click.echo(f"node {after.primary} leads journal {name} in term {after.term} ({FOLLOW})")


def _given_up(context: CliContext, store: Store, change: replicas.Change, to: str) -> str:
    """Describes the events that the replica of ``to`` lacks. Raises UserError and ConflictError
    when a lost record should begin with another replica."""
    ends = journals.reached(store, context.replicas, change.name)
    end = ends.get(to)
    if change.before is None:
        return _begun_with(change.name, ends, to)
    nodes = ", ".join(map(node_of, change.before.in_sync))
    reaches = f"reaches up to seq {end}" if end is not None else "may lack any number of them"
    return (
        f"Only {nodes} had every answered event of {change.name}, and none of these is live, or it "
        f"is damaged or lost there. The replica of {to} {reaches}: what comes after that is lost "
        "for good, also when those come back."
    )


def _begun_with(name: str, ends: Mapping[str, int], to: str) -> str:
    if to not in ends:
        held = ", ".join(sorted(ends)) or "none that answers"
        raise UserError(f"node {to} holds no replica of {name}: expected one of {held}")
    longest = max(ends, key=lambda node: ends[node])
    if ends[longest] > ends[to]:
        raise ConflictError(
            f"the replica of {longest} reaches up to seq {ends[longest]}, and that of {to} to "
            f"{ends[to]}: `flumeng journal promote {name} --to {longest} --unclean`"
        )
    return (
        f"ZooKeeper has no record of {name}: an older export was imported. The replica of {to} "
        f"reaches up to seq {ends[to]}; its events are delivered from the first one on, some of "
        "them perhaps for the second time. What nodes have that do not answer is given up."
    )


@click.command()
@journal_argument
@click.option(
    "--from", "source", required=True, type=Name("node"), metavar="NODE", help="Whose replica."
)
@click.option("--to", "target", required=True, type=Name("node"), metavar="NODE", help="Where to.")
@with_operator
def move(_context: CliContext, operator: Operator, *, name: str, source: str, target: str) -> None:
    """Let another node hold a replica of JOURNAL; the one before it holds on until that is in
    sync."""
    change = replicas.move(operator.store, name, source, target)
    replicas.carry_out(operator, change)
    click.echo(f"the replica of {name} goes from {source} to {target} ({FOLLOW})")


@click.command(name="add-replica")
@journal_argument
@node_argument
@with_operator
def add_replica(_context: CliContext, operator: Operator, *, name: str, node: str) -> None:
    """Let NODE hold a replica of JOURNAL, also when there are as many as its flow wants."""
    change = replicas.add_replica(operator.store, name, node)
    if change is None:
        click.echo(f"node {node} holds a replica of {name}, or is to, already")
        return
    replicas.carry_out(operator, change)
    click.echo(f"node {node} is to hold a replica of {name} ({FOLLOW})")


@click.command(name="drop-replica")
@journal_argument
@node_argument
@click.option("--yes", is_flag=True, help="Do not ask before a journal takes no more events.")
@with_operator
def drop_replica(
    _context: CliContext, operator: Operator, *, name: str, node: str, yes: bool
) -> None:
    """Let NODE hold no replica of JOURNAL any more, at once.

    When there are fewer than its flow wants then, masters choose a node for another one.
    """
    change = replicas.drop_replica(operator.store, name, node)
    wanted = replicas.replicas_of(operator.store, change.after.flow)
    left, least = len(change.after.in_sync), wanted.min_in_sync if wanted else 1
    if left < least and change.leaves_sync and not yes:
        click.confirm(
            f"{name} would be in sync on {left} of the {least} nodes that its flow wants at "
            "least: it takes no events until another one is. Go on?",
            abort=True,
            err=True,
        )
    replicas.carry_out(operator, change)
    click.echo(f"node {node} holds no replica of {name} any more")


@dataclass(frozen=True)
class LeftToOthers:
    """The outcome for a damaged replica. ``in_sync``: live nodes with its events; ``leads``: the
    new primary; ``set_aside``: the path where it is kept."""

    in_sync: tuple[str, ...]
    leads: str | None
    set_aside: str | None

    def text(self, name: str) -> str:
        lines = [f"nothing is lost: {', '.join(self.in_sync)} have all answered events of {name}"]
        if self.leads:
            lines.append(f"node {self.leads} leads it now ({FOLLOW})")
        if self.set_aside:
            lines.append(f"kept as it was: {self.set_aside}; another replica is made when needed")
        else:
            lines.append("left as it is: its node gives it up when it is started")
        return "\n".join(lines)


def leave_to_others(context: CliContext, store: Store, directory: Path) -> LeftToOthers | None:
    """Makes an in-sync replica the primary and sets the damaged one aside; None when no other has
    its events. A journal begun on this host stays in place: its node reads there where the flow's
    sources go on. Raises UserError when a process has it open, and as ``others_in_sync``."""
    from flumeng.journal.log import directory as directories  # noqa: PLC0415  loads pyarrow
    from flumeng.journal.log import replica  # noqa: PLC0415  loads pyarrow

    name = directory.name
    lock = directories.lock(directory)
    try:
        own = replica.read(directory).id
        others = replicas.others_in_sync(store, name, own)
        if not others:
            why = f"no other replica of {name} is in sync: what is damaged here is nowhere else"
            click.echo(why, err=True)
            return None
        leads = None
        record, _ = replicas.require_replicated(store, name)
        if record.primary == node_of(own) and own in record.in_sync:
            change = replicas.promote(store, name, None)
            assert change is not None
            replicas.carry_out(context.operator(store, "its replica is damaged"), change)
            leads = change.after.primary
        began_here = directory.parent.parent.name == "journals"
        aside = None if began_here else str(replica.set_aside(directory))
        return LeftToOthers(tuple(others), leads, aside)
    finally:
        os.close(lock)


COMMANDS = (promote, move, add_replica, drop_replica)
