"""``flumeng ack`` and ``flumeng flow reset``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from cli.context import CliContext, Name, flow_argument, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option, revision_option, timeout_option
from cli.output import count, show_json, show_rows, show_table, warn
from flumeng.control.commands import acks, unfinished_writes
from flumeng.control.commands.lookup import expect_current
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import journals as journal_rows
from flumeng.control.queries import offset_lookup, unfinished
from flumeng.control.queries.acks import acks_of, positions
from flumeng.control.queries.offset_lookup import Resolved
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError, UserError


@click.group(cls=CommandGroup)
def ack() -> None:
    """See how far each flow has delivered; advance acks that lie below the journals' floors."""


@ack.command(name="list")
@json_option
@with_store
def list_(context: CliContext, store: Store, as_json: bool) -> None:
    """List all acks. LAG counts accepted events that are not in the sinks yet.

    END and LAG are "-" while no process reports the partition's end.
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
@click.option("--dry-run", is_flag=True, help="Only print which events would be skipped.")
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

    A journal drops only delivered events. Its ack can be lower if it was lost: ZooKeeper was wiped
    or restored, or a host that was given up came back. The ack is moved to the oldest event in the
    journal; events after it may be delivered a second time. Other acks do not change.
    """
    if every == bool(journals):
        raise UserError("name the journals, or use --all")
    floors = _floors(context, operator.store, journals)
    advances = acks.behind(operator.store, floors)
    for record in advances.unreadable:
        warn(f"{record}: it is not changed")
    for name in journals:
        for record in advances.unreadable:
            if record.path.name == name:
                raise record.error
        if not any(advanced.journal == name for advanced in advances.advanced):
            raise UserError(
                f"journal {name} has all events from its ack on: there is nothing to skip"
            )
    if not dry_run:
        advances = acks.advance_acks(operator, floors)
    if as_json:
        show_json(advances.advanced)
        return
    goes = "would go" if dry_run else "goes"
    for moved in advances.advanced:
        click.echo(
            f"journal {moved.journal} of flow {moved.flow} {goes} on at seq {moved.floor}: "
            f"{moved.events} events before it are gone (cursor {moved.cursor} was at "
            f"{moved.acked})"
        )
    if not advances.advanced:
        click.echo("no ack is below the oldest event of its journal")


@ack.command()
@click.argument("flow", type=Name("flow"), required=False, metavar="[FLOW]")
@json_option
@with_store
def commits(_context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List commits that are decided and not finished yet.

    The acks of such a commit are written, and its events are in its files. A collector moves these
    into place, mostly within a second. It cannot if staged files were removed: then its task stops
    until they are restored, or given up with `flumeng ack drop`. STAGED and MISSING count files as
    this host sees them.
    """
    from flumeng.platform.file_store import exists  # noqa: PLC0415  loads pyarrow

    show_rows(
        unfinished.commits(store, flow, exists),
        ("FLOW", "COMMIT", "FILES", "STAGED", "MISSING", "PROBLEM"),
        lambda c: (c.flow, c.name, len(c.files), len(c.staged), len(c.missing), c.problem),
        as_json=as_json,
    )


@ack.command()
@click.argument("flow", type=Name("flow"), required=False, metavar="[FLOW]")
@json_option
@with_store
def intents(_context: CliContext, store: Store, flow: str | None, as_json: bool) -> None:
    """List batches that are decided and not acked yet, for targets that identify batches by number.

    A task decides a batch, writes it, and acks it, mostly within seconds. The task's next owner
    repeats a decided batch exactly. It cannot if a partition or the target of the batch is gone:
    then the task stops until the batch is given up with `flumeng ack drop`.
    """
    show_rows(
        unfinished.batches(store, flow),
        ("FLOW", "TASK", "BATCH", "REVISION", "EVENTS", "RANGES", "PROBLEM"),
        lambda b: (b.flow, b.task, b.number, b.revision, b.events, _ranges(b.ranges), b.problem),
        as_json=as_json,
    )


@ack.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW")
@click.argument("unit", metavar="COMMIT|TASK")
@click.option("--yes", is_flag=True, help="Do not ask before events are given up.")
@json_option
@with_operator
def drop(
    _context: CliContext, operator: Operator, *, flow: str, unit: str, yes: bool, as_json: bool
) -> None:
    """Give up a commit or a batch that cannot be finished, so that its flow goes on.

    COMMIT: the missing files of a commit. If there is a copy of the files, restore them instead:
    `flumeng ack commits` lists them. A commit that a collector can finish is not dropped. Run it
    on a host that sees the sink's storage.

    TASK, such as collect.0: the batch that it has decided, see `flumeng ack intents`. Its events
    are delivered again in other batches, so those already in the target are duplicated.
    """
    if "@" in unit:
        _drop_commit(operator, flow, unit, yes=yes, as_json=as_json)
    else:
        _drop_batch(operator, flow, unit, yes=yes, as_json=as_json)


def _drop_batch(operator: Operator, flow: str, task: str, *, yes: bool, as_json: bool) -> None:
    if not yes:
        batch, _ = unfinished_writes.require_decided(operator.store, flow, task)
        question = (
            f"batch {batch.number} of {flow}/{task}: {_ranges(batch.ranges) or batch.problem}\n"
            f"If the target has these {batch.events} events, they will be duplicated. Go on?"
        )
        click.confirm(question, abort=True, err=True)
    dropped = unfinished_writes.drop_batch(operator, flow, task)
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
        lost, _ = unfinished_writes.require_lost(operator.store, flow, commit, exists)
        files = "\n".join(lost.missing) or "(its list of files cannot be read)"
        question = f"{files}\nThe events in these files are lost. Go on?"
        click.confirm(question, abort=True, err=True)
    given_up = unfinished_writes.drop_commit(operator, flow, commit, exists).missing
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
            why = f"node {row.node} does not answer: only it knows the events of {row.journal}"
            if journals:
                raise UnavailableError(why)
            warn(f"{why}, whose ack is not changed")
    return {row.journal: row.floor for row in rows if row.floor is not None}


@click.command()
@flow_argument
@click.option(
    "--to",
    "point",
    required=True,
    metavar="earliest|latest|TIME|OFFSETS",
    help="The new position, such as 2026-11-22T08:00:00Z, or orders.3=1200,orders.4=7.",
)
@click.option(
    "--partitions",
    "globs",
    multiple=True,
    metavar="GLOB",
    help="Only partitions that match; may be given again. Default: all.",
)
@click.option("--yes", is_flag=True, help="Do not ask before events are skipped or repeated.")
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
    """Move a paused or stopped flow to other offsets.

    Events before them are skipped, events after them are delivered again: the command shows how
    many, and asks. It waits until the flow's tasks are released (--timeout). A decided batch must
    be finished first. `flumeng flow resume` resumes the flow.

    A topic of Kafka that was deleted and recreated is read only after a reset to earliest, latest
    or a time has accepted it.
    """
    store = operator.store
    target = offset_lookup.parse_point(point)
    expect_current(name, acks.require_resting(store, name), if_revision)
    context.wait_for(lambda: acks.still_collected(store, name), timeout)
    resolved = offset_lookup.resolve(
        store, name, target, globs, ask=context.accounts, ask_offsets=context.offsets
    )
    changes = acks.resets(store, name, resolved.offsets)
    if not as_json:
        _show(name, changes, resolved)
    if (changes or resolved.accepted) and not yes:
        click.confirm(f"{acks.total(changes)}. Go on?", abort=True, err=True)
    if changes:
        changes = acks.reset_acks(operator, name, resolved.offsets)
    if resolved.accepted:
        acks.accept(operator, name, resolved.accepted)
    if as_json:
        show_json(acks.reset_document(name, resolved.offsets, changes, resolved.accepted))
    elif changes or resolved.accepted:
        click.echo(
            f"flow {name}: {acks.total(changes)} (resume it with `flumeng flow resume {name}`)"
        )


def _show(name: str, changes: Sequence[acks.Reset], resolved: Resolved) -> None:
    for partition, start in resolved.accepted.items():
        click.echo(f"{partition} is accepted, and read from {start} on")
    if not changes:
        if resolved.offsets or not resolved.accepted:
            partitions = count(len(resolved.offsets), "partition")
            click.echo(f"flow {name} is at these offsets already, in {partitions}")
        return
    show_table(
        ("PARTITION", "ACK", "TO", "SKIPPED", "REPEATED"),
        ((r.partition, r.before, r.after, r.skipped, r.repeated) for r in changes),
    )
