"""``flumeng site``: other sites whose flows are read here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.context import CliContext, Name, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option
from cli.output import count, show_json, show_table
from flumeng.control.commands import site_failover, sites
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.site_failover import Verb
from flumeng.control.queries import known_sites
from flumeng.control.queries.timestamps import utc
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError
from flumeng.platform.options.quantities import size

F = TypeVar("F", bound=Callable[..., Any])

name_argument = click.argument("name", metavar="SITE")
SHOWN_DIGITS = 16


def change_options(command: F) -> F:
    for option in (
        json_option,
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only print the changes."),
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup)
def site() -> None:
    """Name this cluster, and other sites whose flows are read here."""


@site.command(name="name")
@name_argument
@with_operator
def name_(_context: CliContext, operator: Operator, name: str) -> None:
    """Name this cluster among sites."""
    sites.name_cluster(operator, name)
    click.echo(f"this cluster is the site {name}")


@site.command()
@name_argument
@click.argument("gateways", nargs=-1, required=True, metavar="HOST:PORT...")
@click.option(
    "--authority",
    default="",
    metavar="FINGERPRINT|FILE",
    help="The site's certificate authority: SHA-256 fingerprint, or PEM. Without it, connections "
    "are in plain text.",
)
@click.option(
    "--bytes-per-second",
    "rate",
    callback=lambda _context, _option, value: _size(value),
    metavar="SIZE",
    help="The most that a gateway sends to all flows here together, as 50MB. By default no limit.",
)
@click.option(
    "--at",
    default="",
    metavar="WINDOW",
    help='When flows here read the site, as "22:00-06:00 Europe/Berlin". By default at any time.',
)
@click.option(
    "--standby",
    multiple=True,
    type=Name("flow"),
    metavar="FLOW",
    help="A flow that `site failover` starts; may be given again. Default: as before.",
)
@with_operator
def add(
    _context: CliContext,
    operator: Operator,
    *,
    name: str,
    gateways: tuple[str, ...],
    authority: str,
    rate: int,
    at: str,
    standby: tuple[str, ...],
) -> None:
    """Add a site with its gateways, or change it: give all options again."""
    if authority and Path(authority).is_file():
        authority = _fingerprint(Path(authority))
    changed = sites.add_site(
        operator, name, gateways, authority, bytes_per_second=rate, at=at, standby=standby or None
    )
    click.echo(f"site {name} {'is known' if changed else 'is as before'}: {', '.join(gateways)}")


@site.command(name="list")
@json_option
@with_store
def list_(_context: CliContext, store: Store, as_json: bool) -> None:
    """List the other sites, and the flows here that read them."""
    known = known_sites.known_sites(store)
    if as_json:
        show_json(known)
        return
    show_table(
        ("SITE", "GATEWAYS", "AUTHORITY", "READ BY", "FAILOVER"),
        (
            (
                row.site,
                row.gateways,
                row.authority[:SHOWN_DIGITS] or "plain text",
                row.readers,
                utc(row.failover) if row.failover else "",
            )
            for row in known.sites
        ),
    )
    here = known.here
    click.echo(f"this cluster is the site {here}" if here else "this cluster has no name")


@site.command()
@name_argument
@json_option
@with_store
def show(_context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show one site."""
    row = known_sites.site(store, name)
    if as_json:
        show_json(row)
        return
    click.echo(f"site       {row.site}")
    click.echo(f"gateways   {', '.join(row.gateways)}")
    click.echo(f"authority  {row.authority or '- (plain text)'}")
    limit = f"{row.bytes_per_second} bytes/s a gateway" if row.bytes_per_second else "-"
    click.echo(f"limit      {limit}")
    click.echo(f"at         {row.at or 'any time'}")
    click.echo(f"read by    {', '.join(row.readers) or '-'}")
    click.echo(f"standby    {', '.join(row.standby) or '-'}")
    click.echo(f"failover   {utc(row.failover) if row.failover else '-'}")


@site.command()
@name_argument
@change_options
@with_operator
def failover(
    _context: CliContext, operator: Operator, *, name: str, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Take over from a site that is gone.

    Shows which events were not copied, and asks. Then pauses the flows here that read it, and
    starts its standby flows.
    """
    _carry_out(operator, name, "failover", dry_run=dry_run, yes=yes, as_json=as_json)


@site.command()
@name_argument
@change_options
@with_operator
def failback(
    _context: CliContext, operator: Operator, *, name: str, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Give a site that is back its work again.

    Shows which events are left to read, and asks. Then resumes the flows that the failover paused,
    and stops those that it started.
    """
    _carry_out(operator, name, "failback", dry_run=dry_run, yes=yes, as_json=as_json)


def _carry_out(
    operator: Operator, name: str, verb: Verb, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    plan = site_failover.plan(operator.store, name, verb, operator.now)
    if not as_json:
        _show_plan(plan)
    goes = not dry_run and not plan.is_done
    if goes and not yes:
        click.confirm("Go on?", abort=True, err=True)
    if goes:
        site_failover.carry_out(operator, plan)
    if as_json:
        show_json({**asdict(plan), "silent_seconds": plan.silent_seconds, "changed": goes})
    elif goes:
        click.echo(f"site {name}: {verb} is done, {count(len(plan.changed), 'flow')} changed")


def _show_plan(plan: site_failover.Plan) -> None:
    if plan.flows:
        show_table(
            ("FLOW", "READS", "STATE", "AFTER"),
            ((f.flow, plan.site if f.reads else "", f.before, f.after) for f in plan.flows),
        )
    if plan.unread:
        show_table(
            ("FLOW", "JOURNAL", "ACKED", "END THERE", "MISSING HERE"),
            ((row.flow, row.journal, row.acked, row.end, row.missing) for row in plan.unread),
        )
    silent = plan.silent_seconds
    if silent is None:
        click.echo(f"site {plan.site} has never answered: how many events it has is unknown")
    else:
        click.echo(
            f"site {plan.site} answered {silent:.0f} s ago: {count(plan.missing, 'event')} there "
            "were not acked here; later ones are unknown"
        )
    if plan.unlisted:
        click.echo(f"{count(plan.unlisted, 'more journal')} with unread events are not shown")
    for row in plan.unread:
        if row.floor > row.acked:
            click.echo(f"journal {row.journal} has lost seqs {row.acked} to {row.floor - 1}")
        if row.end < row.acked:
            click.echo(f"journal {row.journal} ends below its ack: it is an old copy")
    if plan.is_done:
        click.echo(f"the failover from site {plan.site} is done already")


@site.command()
@name_argument
@with_operator
def remove(_context: CliContext, operator: Operator, name: str) -> None:
    """Remove a site that no flow reads."""
    sites.remove_site(operator, name)
    click.echo(f"site {name} is removed")


def _size(text: str | None) -> int:
    try:
        return size(text) if text else 0
    except ValueError as error:
        raise UserError(f"--bytes-per-second: {error}") from error


def _fingerprint(file: Path) -> str:
    from flumeng.connectors.sites.credentials import fingerprints  # noqa: PLC0415  loads pyarrow

    try:
        return fingerprints(file.read_bytes())[0]
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
