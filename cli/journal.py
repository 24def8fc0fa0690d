"""``flumeng journal``: the journals of a cluster, and tools for damaged ones."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli import journal_replicas
from cli.context import CliContext, with_store
from cli.lazy import CommandGroup
from cli.options import json_option, optional_zk_option
from cli.output import show_json, show_rows, show_table, warn
from flumeng.control.queries import journals
from flumeng.control.queries.journals import JournalRow
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

directory_argument = click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
)


key_option = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="REFERENCE",
    help="The key of encrypted events, as '${secret:NAME}'; may be given again.",
)


@click.group(cls=CommandGroup)
def journal() -> None:
    """List journals and their replicas; verify, dump and repair their directories.

    verify, dump and repair work on the directory of one journal, on its host, and need neither
    ZooKeeper nor a node; only repair of a replicated journal asks ZooKeeper for other replicas.
    """


for command in journal_replicas.COMMANDS:
    journal.add_command(command)


@journal.command(name="list")
@json_option
@with_store
def list_(context: CliContext, store: Store, as_json: bool) -> None:
    """List all journals. Events from FLOOR up to SAFE can be read, UNACKED of them are not acked.

    Values that only a journal's node knows are "-" while it does not answer. OLDEST is the age of
    the oldest event that is not acked. For replicated journals NODE is the primary of this TERM,
    REPLICAS are the nodes to hold them, and those IN SYNC have every accepted event; LAG counts
    events that replicas lack.
    """
    rows = journals.journals(store, context.accounts, context.clock())
    replicated = any(row.in_sync for row in rows)
    show_rows(
        rows,
        (
            *("JOURNAL", "NODE", "DURABILITY", "FLOOR", "SAFE", "UNACKED", "OLDEST", "SIZE"),
            *(("TERM", "REPLICAS", "IN SYNC", "LAG") if replicated else ()),
            "STATE",
        ),
        lambda row: (
            row.journal,
            row.node,
            row.durability,
            row.floor,
            row.safe,
            row.unacked,
            _seconds(row.oldest_unacked_seconds),
            _size(row.bytes),
            *((row.term, row.replicas, row.in_sync, _lags(row)) if replicated else ()),
            _state(row),
        ),
        as_json=as_json,
    )


@journal.command()
@click.argument("name")
@json_option
@with_store
def show(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show one journal in detail."""
    row = journals.journal(store, context.accounts, context.clock(), name)
    if as_json:
        show_json(row)
        return
    shown = dataclasses.asdict(row) | {
        "oldest_unacked_seconds": _seconds(row.oldest_unacked_seconds),
        "bytes": _size(row.bytes),
        "max_bytes": _size(row.max_bytes),
        "full_seconds": _seconds(row.full_seconds),
    }
    show_table(("WHAT", "VALUE"), ((key.replace("_", " "), value) for key, value in shown.items()))


@journal.command()
@directory_argument
@key_option
@json_option
def verify(directory: Path, keys: tuple[str, ...], as_json: bool) -> None:
    """Check every bit of the journal in DIR. Changes nothing; exit code 1 when there is damage.

    Without their key only checksums of encrypted events are checked. Of a journal that a process
    has open, only the part that is surely on disk is checked.
    """
    from flumeng.journal.log.encryption import Keyring  # noqa: PLC0415  loads pyarrow
    from flumeng.journal.log.inspection import inspect  # noqa: PLC0415  loads pyarrow

    result = inspect(directory, keyring=Keyring.resolve(keys))
    if as_json:
        show_json({"in_use": result.in_use, "findings": result.findings, "damaged": result.damaged})
    else:
        if result.in_use:
            click.echo("a process has it open: data written now is not checked", err=True)
        for finding in result.findings:
            click.echo(f"{'DAMAGE' if finding.damage else 'note'}: {finding}")
        if not result.damaged:
            sound = result.checkpoint
            assert sound is not None
            click.echo(f"{directory.name} is sound: events {sound.floor} to {sound.safe}")
    if result.damaged:
        raise SystemExit(1)


@journal.command()
@directory_argument
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0),
    default=0,
    metavar="SEQ",
    help="The first event. Default: the oldest.",
)
@click.option("--to", "end", type=click.IntRange(min=0), metavar="SEQ", help="The end, exclusive.")
@click.option("--attrs", is_flag=True, help="With all attributes.")
@key_option
def dump(directory: Path, start: int, end: int | None, attrs: bool, keys: tuple[str, ...]) -> None:
    """Print the events of the journal in DIR as JSON, one a line. Changes nothing.

    A body that is not UTF-8 is printed as "body_base64". Unreadable parts are named on standard
    error, and the exit code is 1.
    """
    from flumeng.journal.log.encryption import Keyring  # noqa: PLC0415  loads pyarrow
    from flumeng.journal.log.inspection import Finding  # noqa: PLC0415  loads pyarrow
    from flumeng.journal.log.inspection import dump as found_in  # noqa: PLC0415  loads pyarrow

    bad = False
    for item in found_in(directory, start, end, Keyring.resolve(keys)):
        if isinstance(item, Finding):
            bad = True
            warn(item)
        else:
            for event in _events(*item, attrs=attrs):
                click.echo(json.dumps(event))
    if bad:
        raise SystemExit(1)


@journal.command()
@directory_argument
@click.option("--accept-loss", is_flag=True, help="Let readers skip lost events.")
@optional_zk_option
@json_option
@click.pass_context
def repair(
    click_context: click.Context,
    *,
    directory: Path,
    accept_loss: bool,
    hosts: str | None,
    as_json: bool,
) -> None:
    """Repair the journal in DIR so that it opens again; its node must be stopped.

    A torn tail is cut. Damaged files go to DIR/quarantine, and all intact events are kept. Readers
    stop at the first lost event until the loss is accepted with --accept-loss.

    A replicated journal loses nothing while another replica is in sync, which is looked up with
    --zk: that one becomes the primary, and the one in DIR is set aside and replaced.
    """
    from flumeng.journal.log.repair import repair as run  # noqa: PLC0415  loads pyarrow

    if done_with := _left_to_others(click_context, directory, hosts):
        if as_json:
            show_json(done_with)
        else:
            click.echo(done_with.text(directory.name))
        return
    done = run(directory, accept_loss=accept_loss)
    if as_json:
        show_json(done)
        return
    for start, end in done.lost:
        click.echo(f"lost: events {start} to {end}")
    for name in done.quarantined:
        click.echo(f"kept as it was: {directory / 'quarantine' / name}")
    state = "; it takes no more events" if done.closed else ""
    click.echo(f"{directory.name} opens again with events {done.floor} to {done.end}{state}")
    if done.waits_at is not None:
        click.echo(
            f"readers stop at seq {done.waits_at}, since events are lost (in all {done.events}); "
            "to skip these: flumeng journal repair --accept-loss"
        )


def _left_to_others(
    click_context: click.Context, directory: Path, hosts: str | None
) -> journal_replicas.LeftToOthers | None:
    from flumeng.journal.log import replica  # noqa: PLC0415  loads pyarrow
    from flumeng.journal.log.inspection import inspect  # noqa: PLC0415  loads pyarrow

    if not replica.exists(directory) or not inspect(directory).damaged:
        return None
    if not hosts:
        raise UserError(
            f"{directory} is a replica of a replicated journal, and others may have the damaged "
            "events: name its cluster with --zk"
        )
    context = click_context.ensure_object(CliContext)
    with context.store(hosts) as store:
        return journal_replicas.leave_to_others(context, store, directory)


def _events(first: int, batch: pa.RecordBatch, *, attrs: bool) -> list[dict[str, Any]]:
    events = []
    for row, event in enumerate(batch.to_pylist()):
        try:
            body = {"body": event["body"].decode()}
        except UnicodeDecodeError:
            body = {"body_base64": base64.b64encode(event["body"]).decode()}
        line = {"seq": first + row, "ts": event["ts"].isoformat(), "host": event["host"], **body}
        events.append(line | {"attrs": dict(event["attrs"])} if attrs else line)
    return events


def _state(row: JournalRow) -> str:
    if row.waits_at is not None:
        return f"stops at {row.waits_at}: events are lost"
    state = "closed" if row.closed else "open"
    state = f"{state}, {row.lost} lost" if row.lost else state
    return f"{state}: {row.problem}" if row.problem else state


def _lags(row: JournalRow) -> str | None:
    return ", ".join(f"{node} {events}" for node, events in row.lags.items()) or None


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.0f} s"


def _size(nbytes: int | None) -> str | None:
    return None if nbytes is None else f"{nbytes / (1 << 20):.1f} MiB"
