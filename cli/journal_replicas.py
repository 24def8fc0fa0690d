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
@click.option("--to", type=Name("node"), metavar="NODE", help="The node. Default: any in sync.")
@click.option("--unclean", is_flag=True, help="Give up events that only dead replicas have.")
@click.option("--yes", is_flag=True, help="Do not ask before events are given up.")
@with_operator
def promote(
    context: CliContext, operator: Operator, *, name: str, to: str | None, unclean: bool, yes: bool
) -> None:
    """Make another replica of JOURNAL its primary: one in sync, so that nothing is lost.

    Masters do so when the primary's node is lost. The journal then accepts no more events, and is
    fully collected. With --unclean a replica that is not in sync becomes the primary, when none in
    sync is left: accepted events may be lost.
    """
    store = operator.store
    if unclean:
        if to is None:
            raise UserError("--unclean needs --to NODE")
        change = replicas.promote_unclean(store, name, to)
        given_up = _given_up(context, store, change, to)
        if not yes:
            click.confirm(f"{given_up} Go on?", abort=True, err=True)
        replicas.carry_out(operator, change)
        click.echo(f"node {to} is the primary of {name} in a new lineage, term {change.after.term}")
        return
    clean = replicas.promote(store, name, to)
    if clean is None:
        click.echo(f"node {to} is the primary of journal {name} already")
        return
    replicas.carry_out(operator, clean)
    after = clean.after
    click.echo(f"node {after.primary} is the primary of {name} in term {after.term} ({FOLLOW})")


def _given_up(context: CliContext, store: Store, change: replicas.Change, to: str) -> str:
    """Describe the events that the replica on ``to`` lacks. When the journal's record is lost,
    raises UserError if there is no such replica, ConflictError if another one has more events."""
    ends = journals.reached(store, context.replicas, change.name)
    end = ends.get(to)
    if change.before is None:
        return _begun_with(change.name, ends, to)
    nodes = ", ".join(map(node_of, change.before.in_sync))
    reaches = f"reaches up to seq {end}" if end is not None else "may lack any number of events"
    return (
        f"Only {nodes} had every accepted event of {change.name}, and each is down, or its replica "
        f"is damaged or lost. The replica of {to} {reaches}: later events are lost for good, even "
        "if the others come back."
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
        f"reaches up to seq {ends[to]}; all its events are delivered, some of them perhaps for the "
        "second time. Events of nodes that do not answer are given up."
    )


@click.command()
@journal_argument
@click.option(
    "--from", "source", required=True, type=Name("node"), metavar="NODE", help="The old node."
)
@click.option("--to", "target", required=True, type=Name("node"), metavar="NODE", help="A new one.")
@with_operator
def move(_context: CliContext, operator: Operator, *, name: str, source: str, target: str) -> None:
    """Move a replica of JOURNAL to another node; the old one stays until the new one is in sync."""
    change = replicas.move(operator.store, name, source, target)
    replicas.carry_out(operator, change)
    click.echo(f"the replica of {name} moves from {source} to {target} ({FOLLOW})")


@click.command(name="add-replica")
@journal_argument
@node_argument
@with_operator
def add_replica(_context: CliContext, operator: Operator, *, name: str, node: str) -> None:
    """Add a replica of JOURNAL on NODE, even if it has as many as its flow wants."""
    change = replicas.add_replica(operator.store, name, node)
    if change is None:
        click.echo(f"node {node} has or gets a replica of {name} already")
        return
    replicas.carry_out(operator, change)
    click.echo(f"node {node} gets a replica of {name} ({FOLLOW})")


@click.command(name="drop-replica")
@journal_argument
@node_argument
@click.option("--yes", is_flag=True, help="Do not ask before a journal takes no more events.")
@with_operator
def drop_replica(
    _context: CliContext, operator: Operator, *, name: str, node: str, yes: bool
) -> None:
    """Drop the replica of JOURNAL on NODE, at once.

    If fewer remain than its flow wants, masters choose a node for another one.
    """
    change = replicas.drop_replica(operator.store, name, node)
    replication = replicas.replicas_of(operator.store, change.after.flow)
    left, least = len(change.after.in_sync), replication.min_in_sync if replication else 1
    if left < least and change.leaves_sync and not yes:
        click.confirm(
            f"{name} would be in sync on {left} of the {least} nodes that its flow requires: it "
            "accepts no events until another replica is in sync. Go on?",
            abort=True,
            err=True,
        )
    replicas.carry_out(operator, change)
    click.echo(f"node {node} holds no replica of {name} any more")


@dataclass(frozen=True)
class LeftToOthers:
    """The outcome for a damaged replica. ``in_sync``: live nodes with its events; ``leads``: the
    new primary, if any; ``set_aside``: the path where the replica is kept."""

    in_sync: tuple[str, ...]
    leads: str | None
    set_aside: str | None

    def text(self, name: str) -> str:
        lines = [f"nothing is lost: {', '.join(self.in_sync)} have all accepted events of {name}"]
        if self.leads:
            lines.append(f"node {self.leads} is its primary now ({FOLLOW})")
        if self.set_aside:
            lines.append(f"kept as it was: {self.set_aside}; another replica is made when needed")
        else:
            lines.append("left in place: its node discards it at its start")
        return "\n".join(lines)


def leave_to_others(context: CliContext, store: Store, directory: Path) -> LeftToOthers | None:
    """Make an in-sync replica the primary and set the damaged one aside; None when no other has its
    events. A journal begun on this host stays in place: its node reads there where the flow's
    sources continue. Raises UserError when a process has it open, or like ``others_in_sync``."""
    from flumeng.journal.log import directory as directories  # noqa: PLC0415  loads pyarrow
    from flumeng.journal.log import replica  # noqa: PLC0415  loads pyarrow

    name = directory.name
    lock = directories.lock(directory)
    try:
        own = replica.read(directory).id
        others = replicas.others_in_sync(store, name, own)
        if not others:
            why = f"no other replica of {name} is in sync: there is no other copy of its events"
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
