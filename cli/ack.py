"""``flumeng ack``: acks of flows, and acks below what journals keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import click

from cli.context import CliContext, Name, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option
from cli.output import show_json, show_table
from flumeng.control.commands.acks import advance_acks, behind
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.unfinished import (
    decided_batches,
    drop_batch,
    drop_commit,
    require_decided,
    require_lost,
    unfinished_commits,
    whereabouts,
)
from flumeng.control.queries import journals as journal_rows
from flumeng.control.queries.acks import acks_of, positions
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError, UserError


@click.group(cls=CommandGroup)
def ack() -> None:
    """See how far each flow has delivered; move on acks that lie below what journals keep."""


@ack.command(name="list")
@json_option
@with_store
def list_(context: CliContext, store: Store, as_json: bool) -> None:
    """List all acks. LAG counts events that are there and not yet in the sinks.

    END and LAG are unknown ("-") while nobody answers who knows how far the partition reaches.
    """
    rows = acks_of(store, positions(store, context.ask))
    if as_json:
        show_json(rows)
        return
    show_table(
        ("FLOW", "PARTITION", "EPOCH", "OFFSET", "END", "LAG"),
        ((r.flow, r.partition, r.epoch, r.offset, r.end, r.lag) for r in rows),
    )


@ack.command()
@click.argument("journals", nargs=-1, metavar="[JOURNAL]...")
@click.option("--all", "every", is_flag=True, help="All journals of live nodes.")
@click.option("--dry-run", is_flag=True, help="Only print what would be passed over.")
@json_option
@with_operator
def advance(
    context: CliContext,
    operator: Operator,
    *,
    journals: tuple[str, ...],
    every: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Let journals be read on that keep nothing at their ack any more.

    A journal drops only what was delivered. Its ack can lie below that when it was lost: after
    ZooKeeper was wiped or restored, or when a host that was given up came back. The ack is moved to
    the first event that the journal keeps; what follows may be delivered for the second time. Other
    acks stay as they are.
    """
    if every == bool(journals):
        raise UserError("name the journals, or take --all")
    floors = _floors(context, operator.store, journals)
    found = behind(operator.store, floors)
    for one in found.unreadable:
        click.echo(f"flumeng: {one}: it stays as it is", err=True)
    for name in journals:
        for one in found.unreadable:
            if one.path.name == name:
                raise one.error
        if not any(one.journal == name for one in found.advanced):
            raise UserError(
                f"journal {name} keeps everything from its ack on: nothing to pass over"
            )
    if not dry_run:
        found = advance_acks(operator, floors)
    if as_json:
        show_json(found.advanced)
        return
    goes = "would go" if dry_run else "goes"
    for moved in found.advanced:
        click.echo(
            f"journal {moved.journal} of flow {moved.flow} {goes} on at seq {moved.floor}: "
            f"{moved.events} events below are not in it any more (cursor {moved.cursor} was at "
            f"{moved.acked})"
        )
    if not found.advanced:
        click.echo("no ack lies below what its journal keeps")


@ack.command()
@click.argument("flow", type=Name("flow"), required=False, metavar="[FLOW]")
@json_option
@with_store
def commits(_context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List commits that are decided and not finished yet.

    The acks of such a commit are written: its events are in its files. A collector brings these to
    their place and the commit goes, mostly within a second. It cannot when files were taken away
    from where they were staged: then its task stands still until they are restored, or given up
    with `flumeng ack drop`. STAGED and MISSING count files as this host sees them.
    """
    from flumeng.platform.file_store import exists  # noqa: PLC0415  loads pyarrow

    rows = [(commit, whereabouts(commit, exists)) for commit in unfinished_commits(store, flow)]
    if as_json:
        show_json([{**asdict(commit), **asdict(files)} for commit, files in rows])
        return
    show_table(
        ("FLOW", "COMMIT", "FILES", "STAGED", "MISSING", "PROBLEM"),
        (
            (c.flow, c.name, len(c.files), len(files.staged), len(files.missing), c.problem)
            for c, files in rows
        ),
    )


@ack.command()
@click.argument("flow", type=Name("flow"), required=False, metavar="[FLOW]")
@json_option
@with_store
def intents(_context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List batches that are decided and not acked yet, for targets that know batches by number.

    A task decides a batch, writes it, and acks it, mostly within seconds. Whoever owns the task
    next repeats a batch that it finds, exactly. It cannot when a partition of it is gone, or its
    target: then the task stands still until the batch is given up with `flumeng ack drop`.
    """
    rows = decided_batches(store, flow)
    if as_json:
        show_json([{**asdict(batch), "events": batch.events} for batch in rows])
        return
    show_table(
        ("FLOW", "TASK", "BATCH", "REVISION", "EVENTS", "RANGES", "PROBLEM"),
        (
            (b.flow, b.task, b.number, b.revision, b.events, _ranges(b.ranges), b.problem)
            for b in rows
        ),
    )


@ack.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW")
@click.argument("what", metavar="COMMIT|TASK")
@click.option("--yes", is_flag=True, help="Do not ask before something is given up.")
@json_option
@with_operator
def drop(
    _context: CliContext, operator: Operator, *, flow: str, what: str, yes: bool, as_json: bool
) -> None:
    """Give up what nobody can finish, so that its flow goes on.

    COMMIT: the missing files of a commit. Restore the files instead when there is a copy of them:
    `flumeng ack commits` tells which. What a collector can finish is not dropped. Run it where the
    sink's storage is seen.

    TASK, such as collect.0: the batch that it has decided, see `flumeng ack intents`. Its events
    are delivered again in other batches, so those that the target has already are there twice.
    """
    if "@" in what:
        _drop_commit(operator, flow, what, yes=yes, as_json=as_json)
    else:
        _drop_batch(operator, flow, what, yes=yes, as_json=as_json)


def _drop_batch(operator: Operator, flow: str, task: str, *, yes: bool, as_json: bool) -> None:
    if not yes:
        batch, _ = require_decided(operator.store, flow, task)
        question = (
            f"batch {batch.number} of {flow}/{task}: {_ranges(batch.ranges) or batch.problem}\n"
            f"If the target has taken these {batch.events} events, they will be there twice. Go on?"
        )
        click.confirm(question, abort=True, err=True)
    dropped = drop_batch(operator, flow, task)
    if as_json:
        show_json({**asdict(dropped), "events": dropped.events})
        return
    click.echo(
        f"given up: batch {dropped.number} of {flow}/{task}, {dropped.events} events, which are "
        "delivered again"
    )


def _drop_commit(operator: Operator, flow: str, commit: str, *, yes: bool, as_json: bool) -> None:
    from flumeng.platform.file_store import exists  # noqa: PLC0415  loads pyarrow

    if not yes:
        lost, _ = require_lost(operator.store, flow, commit, exists)
        files = "\n".join(lost.missing) or "(which files it has cannot be read)"
        question = f"{files}\nThe events in these files are lost. Go on?"
        click.confirm(question, abort=True, err=True)
    given_up = drop_commit(operator, flow, commit, exists).missing
    if as_json:
        show_json({"flow": flow, "commit": commit, "given_up": given_up})
        return
    for file in given_up:
        click.echo(f"given up: {file}")


def _ranges(ranges: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {start}-{end}" for name, (start, end) in sorted(ranges.items()))


def _floors(context: CliContext, store: Store, journals: tuple[str, ...]) -> dict[str, int]:
    """The first retained events of the named journals, or of all known."""
    rows = journal_rows.journals(store, context.accounts, context.clock())
    if journals:
        rows = [journal_rows.pick(rows, name) for name in journals]
        for row in rows:
            if row.floor is None:
                raise UnavailableError(
                    f"node {row.node} does not answer: only it knows what {row.journal} keeps"
                )
    return {row.journal: row.floor for row in rows if row.floor is not None}
