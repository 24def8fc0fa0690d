"""``flumeng flow dead``: dead letters in files."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import click

from cli.context import CliContext, flow_argument, with_store
from cli.lazy import CommandGroup
from cli.options import json_option, reason_option
from cli.output import count, progress, show_json, show_table, warn
from flumeng.config import parse_flow
from flumeng.connectors.dead_letters.commands import plan_purge, plan_replay
from flumeng.connectors.dead_letters.of_flow import FlowDeadLetters
from flumeng.connectors.dead_letters.replay_lists import Listing
from flumeng.connectors.dead_letters.selection import Selection, moment
from flumeng.connectors.dead_letters.summary import newest, summarize
from flumeng.control.commands.derived_flows import DeadLettersOf
from flumeng.control.queries import timestamps
from flumeng.control.zookeeper import Store

P = ParamSpec("P")
R = TypeVar("R")
NAMED = 5
MOST_SHOWN = 10_000
yes_option = click.option("--yes", is_flag=True, help="Do not ask before dead letters are deleted.")


@click.group(cls=CommandGroup)
def dead() -> None:
    """List, show, replay and purge the dead letters of a flow.

    For flows whose `dead_letters` is a sink `files` in parquet or json. The command reads the files
    itself: run it on a host that can read them, with the secrets of the sink.
    """


def reading(letters: FlowDeadLetters) -> AbstractContextManager[Callable[[int], None]]:
    return progress("reading dead letters", len(letters.files))


def with_choice(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options that select dead letters; the command gets them as ``choice``."""

    @click.option("--dead-reason", default="", metavar="TEXT", help="Only with this in the reason.")
    @click.option(
        "--place",
        default="",
        metavar="PLACE",
        help="Only of this filter or sink, such as sinks[0].elasticsearch, or with this prefix.",
    )
    @click.option(
        "--revision", type=click.IntRange(min=1), metavar="N", help="Only of this revision."
    )
    @click.option(
        "--since", metavar="TIME", help="Only from that time on, such as 2026-11-22T08:00:00Z."
    )
    @click.option("--until", metavar="TIME", help="Only before that time.")
    @functools.wraps(command)
    def chosen(*args: P.args, **options: P.kwargs) -> R:

        given: Any = {name: options.pop(name) for name in ("place", "revision")}
        reason = options.pop("dead_reason")
        since, until = (str(options.pop(it) or "") for it in ("since", "until"))
        options["choice"] = Selection(
            reason=str(reason),
            since=moment("--since", since),
            until=moment("--until", until),
            **given,
        )
        return command(*args, **options)

    return chosen


@dead.command(name="list")
@flow_argument
@with_choice
@json_option
@with_store
def list_(
    _context: CliContext, store: Store, *, name: str, choice: Selection, as_json: bool
) -> None:
    """Count the dead letters of a flow by place, revision, and the common part of their reasons."""

    letters = FlowDeadLetters.open(store, name)
    with reading(letters) as tell:
        totals = summarize(letters.directory, letters.files, choice, letters.replays, tell)
    if as_json:
        show_json(letters.as_json(totals))
        return
    _warn(totals.damaged)
    show_table(
        ("PLACE", "REVISION", "REASON", "DEAD_LETTERS", "REPLAYED", "FIRST (UTC)", "LAST (UTC)"),
        (
            (
                kind.place,
                kind.revision,
                kind.reason,
                kind.letters,
                kind.replayed,
                timestamps.utc(kind.first // 1_000_000),
                timestamps.utc(kind.last // 1_000_000),
            )
            for kind in totals.kinds
        ),
    )
    click.echo(
        f"{count(totals.letters, 'dead letter')} in {count(totals.files, 'file')} of "
        f"{totals.bytes:,} bytes in {letters.of.files.path}, {totals.replayed} of them replayed"
    )


@dead.command()
@flow_argument
@with_choice
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_SHOWN),
    default=20,
    show_default=True,
    metavar="N",
    help="Show at most N.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each dead letter as a line of JSON.")
@with_store
def show(
    _context: CliContext, store: Store, *, name: str, choice: Selection, limit: int, as_json: bool
) -> None:
    """Show dead letters, the newest first."""

    letters = FlowDeadLetters.open(store, name)
    with reading(letters) as tell:
        letters_shown, damaged = newest(letters.directory, letters.files, choice, limit, tell)
    _warn(damaged)
    for text in letters_shown:
        if as_json:
            click.echo(text)
        else:
            _show_dead_letter(json.loads(text))


@dead.command()
@flow_argument
@with_choice
@click.option("--as", "own_name", metavar="NAME", help="Its name. [default: FLOW-replay-N]")
@click.option("--again", is_flag=True, help="Also dead letters that were replayed before.")
@click.option("--dry-run", is_flag=True, help="Only print the dead letters that it would replay.")
@reason_option
@json_option
@with_store
def replay(
    context: CliContext,
    store: Store,
    *,
    name: str,
    choice: Selection,
    own_name: str | None,
    again: bool,
    dry_run: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Send dead letters through the current revision of their flow, as events with `replayed`.

    A separate flow with that revision's text and its own acks reads them, beside the live one, and
    stops when all are read: wait for that with `flumeng flow wait NAME --stopped`, then delete it.
    Each dead letter is replayed only once, unless --again is given. An event that fails again
    becomes a new dead letter. An event that one of several sinks refused goes into all of them.
    """

    letters = FlowDeadLetters.open(store, name)
    with reading(letters) as tell:
        planned = plan_replay(
            store, name, choice, own_name=own_name, again=again, progress=tell, letters=letters
        )
    if not as_json:
        _warn(planned.listing.damaged)
        _tell_left_out(planned.listing)
        _tell_of_others(planned.listing, letters.of)
    listed = planned.listed
    if not dry_run:
        planned.write(listed)
        planned.start(context.operator(store, reason), listed)
    if as_json:
        show_json(planned.document)
        return
    show_table(("PLACE", "DEAD_LETTERS"), sorted(planned.listing.places.items()))
    would = "would replay" if dry_run else "replays"
    click.echo(
        f"flow {planned.flow} {would} {count(listed.chosen, 'dead letter')} of "
        f"{count(len(planned.listing.files), 'file')}"
    )


@dead.command()
@flow_argument
@with_choice
@click.option("--replayed", is_flag=True, help="Only dead letters that a replay has delivered.")
@click.option("--dry-run", is_flag=True, help="Only count the dead letters to delete.")
@yes_option
@reason_option
@json_option
@with_store
def purge(
    context: CliContext,
    store: Store,
    *,
    name: str,
    choice: Selection,
    replayed: bool,
    dry_run: bool,
    yes: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Delete dead letters. A file with dead letters to keep is rewritten.

    Nothing is deleted while a replay reads dead letters. An interrupted purge may be repeated.
    """

    letters = FlowDeadLetters.open(store, name)
    with reading(letters) as tell:
        planned = plan_purge(store, name, choice, replayed=replayed, progress=tell, letters=letters)
    counted = planned.counted
    whole, parts = len(counted.whole), len(counted.parts)
    total = f"{count(counted.letters, 'dead letter')} in {count(whole + parts, 'file')}"
    rest = f", {parts} of which have others too" if parts else ""
    _warn(counted.damaged)
    if not dry_run and counted.letters:
        if not yes:
            click.confirm(f"{total}{rest}. Delete them?", abort=True, err=True)
        planned.note(context.operator(store, reason))
        with progress("deleting", whole + parts) as tell:
            _warn(planned.delete(tell))
    if as_json:
        show_json(planned.document)
        return
    click.echo(f"flow {name}: {total} {'would be' if dry_run else 'are'} deleted{rest}")


def _tell_left_out(listing: Listing) -> None:
    if listing.replayed:
        warn(
            f"{count(listing.replayed, 'dead letter')} left out, replayed before (--again "
            "includes them)"
        )
    if listing.bodiless:
        warn(
            f"{count(listing.bodiless, 'dead letter')} left out, without the column body: a "
            "filter of the flow dropped it before they failed"
        )


def _tell_of_others(listing: Listing, letters: DeadLettersOf) -> None:
    """Warn that other sinks may get events again that are dead letters of one sink."""
    refused = sum(letters for origin, letters in listing.places.items() if "sinks[" in origin)
    if refused and len(parse_flow(letters.text).leaves) > 1:
        warn(
            f"{count(refused, 'dead letter')} of sinks: other sinks of the flow that have these "
            "events get them again"
        )


def _show_dead_letter(letter: Mapping[str, Any]) -> None:
    origin, revision = letter.get("dead_place"), letter.get("dead_revision")
    click.echo(f"{letter.get('dead_time')} {origin} (revision {revision})")
    click.echo(f"  reason: {letter.get('dead_reason')}")
    for name, value in letter.items():
        if not name.startswith("dead_") and name != "body_base64":
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            click.echo(f"  {name}: {shown}")


def _warn(damaged: Mapping[str, str]) -> None:
    for why in list(damaged.values())[:NAMED]:
        warn(f"left out: {why}")
    if len(damaged) > NAMED:
        warn(f"left out: {len(damaged) - NAMED} more damaged files")
