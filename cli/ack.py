"""``flumeng ack``, ``flumeng cursor`` and ``flumeng flow reset``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from cli.context import CliContext, Name, flow_argument, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option, revision_option, timeout_option
from cli.output import count, show_json, show_rows, show_table, warn
from flumeng.control.commands import acks, unfinished
from flumeng.control.commands.lookup import expect_current, require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import journals as journal_rows
from flumeng.control.queries import moments, points
from flumeng.control.queries.acks import acks_of, cursors, positions
from flumeng.control.queries.points import Resolved
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError, UserError


@click.group(cls=CommandGroup)
def ack() -> None:
    """See how far each flow has delivered; advance acks that lie below the journals' floors."""


@ack.command(name="list")
@json_option
@with_store
def list_(context: CliContext, store: Store, as_json: bool) -> None:
    """List all acks. LAG counts events that are there and not yet in the sinks.

    END and LAG are unknown ("-") while no process that knows the partition's end answers.
    """
    show_rows(
        acks_of(store, positions(store, context.ask)),
        ("FLOW", "PARTITION", "EPOCH", "OFFSET", "END", "LAG"),
        lambda row: (row.flow, row.partition, row.epoch, row.offset, row.end, row.lag),
        as_json=as_json,
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
    """Advance acks to the oldest event that their journals still keep.

    A journal drops only events that were delivered. Its ack can lie below that when it was lost:
    after ZooKeeper was wiped or restored, or when a host that was given up came back. The ack is
    moved to the first event that the journal keeps; events after it may be delivered for the second
    time. Other acks stay as they are.
    """
    if every == bool(journals):
        raise UserError("name the journals, or take --all")
    floors = _floors(context, operator.store, journals)
    found = acks.behind(operator.store, floors)
    for one in found.unreadable:
        warn(f"{one}: it stays as it is")
    for name in journals:
        for one in found.unreadable:
            if one.path.name == name:
                raise one.error
        if not any(one.journal == name for one in found.advanced):
            raise UserError(
                f"journal {name} keeps everything from its ack on: nothing to pass over"
            )
    if not dry_run:
        found = acks.advance_acks(operator, floors)
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

    rows = [
        (commit, unfinished.whereabouts(commit, exists))
        for commit in unfinished.unfinished_commits(store, flow)
    ]
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

    A task decides a batch, writes it, and acks it, mostly within seconds. The next owner of the
    task repeats a batch that it finds, exactly. It cannot when a partition of it is gone, or its
    target: then the task stands still until the batch is given up with `flumeng ack drop`.
    """
    rows = unfinished.decided_batches(store, flow)
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
    """Give up a commit or a batch that cannot be finished, so that its flow goes on.

    COMMIT: the missing files of a commit. Restore the files instead when there is a copy of them:
    `flumeng ack commits` lists them. A commit that a collector can finish is not dropped. Run it
    where the sink's storage is seen.

    TASK, such as collect.0: the batch that it has decided, see `flumeng ack intents`. Its events
    are delivered again in other batches, so those that the target has already are there twice.
    """
    if "@" in what:
        _drop_commit(operator, flow, what, yes=yes, as_json=as_json)
    else:
        _drop_batch(operator, flow, what, yes=yes, as_json=as_json)


def _drop_batch(operator: Operator, flow: str, task: str, *, yes: bool, as_json: bool) -> None:
    if not yes:
        batch, _ = unfinished.require_decided(operator.store, flow, task)
        question = (
            f"batch {batch.number} of {flow}/{task}: {_ranges(batch.ranges) or batch.problem}\n"
            f"If the target has taken these {batch.events} events, they will be there twice. Go on?"
        )
        click.confirm(question, abort=True, err=True)
    dropped = unfinished.drop_batch(operator, flow, task)
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
        lost, _ = unfinished.require_lost(operator.store, flow, commit, exists)
        files = "\n".join(lost.missing) or "(which files it has cannot be read)"
        question = f"{files}\nThe events in these files are lost. Go on?"
        click.confirm(question, abort=True, err=True)
    given_up = unfinished.drop_commit(operator, flow, commit, exists).missing
    if as_json:
        show_json({"flow": flow, "commit": commit, "given_up": given_up})
        return
    for file in given_up:
        click.echo(f"given up: {file}")


def _ranges(ranges: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {start}-{end}" for name, (start, end) in sorted(ranges.items()))


def _floors(context: CliContext, store: Store, journals: tuple[str, ...]) -> dict[str, int]:
    rows = journal_rows.journals(store, context.accounts, context.clock())
    if journals:
        rows = [journal_rows.pick(rows, name) for name in journals]
        for row in rows:
            if row.floor is None:
                raise UnavailableError(
                    f"node {row.node} does not answer: only it knows what {row.journal} keeps"
                )
    return {row.journal: row.floor for row in rows if row.floor is not None}


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

    Events before them are skipped, events behind them are delivered again: it shows how many, and
    asks. It waits until the flow's tasks have let go (--timeout). A batch that is decided and not
    finished refuses it. `flumeng flow resume` lets the flow go on.

    A topic of Kafka that was deleted and made again is read only after a reset to earliest, latest
    or a time has accepted it.
    """
    store = operator.store
    wanted = points.parse_point(point)
    expect_current(name, acks.require_resting(store, name), if_revision)
    context.wait_for(lambda: acks.still_collected(store, name), timeout)
    found = points.resolve(
        store, name, wanted, globs, ask=context.accounts, ask_offsets=context.offsets
    )
    changes = acks.resets(store, name, found.offsets)
    if not as_json:
        _show(name, changes, found)
    if (changes or found.accepted) and not yes:
        click.confirm(f"{_total(changes)}. Go on?", abort=True, err=True)
    if changes:
        changes = acks.reset_acks(operator, name, found.offsets)
    if found.accepted:
        acks.accept(operator, name, found.accepted)
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


def _show(name: str, changes: Sequence[acks.Reset], found: Resolved) -> None:
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


def _total(changes: Sequence[acks.Reset]) -> str:
    skipped, repeated = sum(r.skipped for r in changes), sum(r.repeated for r in changes)
    return (
        f"{count(skipped, 'event')} skipped and {repeated} repeated in "
        f"{count(len(changes), 'partition')}"
    )


@click.group(cls=CommandGroup)
def cursor() -> None:
    """See which other readers flows have; delete cursors of readers that are no flows."""


@cursor.command(name="list")
@click.argument("flow", required=False, type=Name("flow"), metavar="[FLOW]")
@json_option
@with_store
def list_cursors(context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List the cursors at all flows, or at one, that are not their own.

    Journals keep events that a cursor has not read: LAG counts these events. That of a flow keeps
    them for as long as the flow is there, that of another reader UNTIL a time, which its reader
    moves on.
    """
    if flow is not None:
        require_flow(store, flow)
    where = positions(store, context.ask)
    show_rows(
        [row for row in cursors(store, where) if flow in (None, row.flow)],
        ("FLOW", "CURSOR", "READER", "UNTIL", "JOURNALS", "LAG", "PROBLEM"),
        lambda row: (
            row.flow,
            row.cursor,
            row.reader,
            None if row.until is None else moments.utc(row.until),
            row.journals,
            row.lag,
            row.problem,
        ),
        as_json=as_json,
    )


@cursor.command(name="delete")
@click.argument("flow", type=Name("flow"), metavar="FLOW")
@click.argument("name", metavar="CURSOR")
@with_operator
def delete_(_context: CliContext, operator: Operator, flow: str, name: str) -> None:
    """Delete the cursor of a reader that is no flow: journals drop events that only it had not
    read.

    A reader that still runs fails with its next step. The cursor of a flow goes with that flow.
    """
    acks.delete_cursor(operator, flow, name)
    click.echo(f"cursor {name} of flow {flow} is gone: nothing is kept for it any more")
