"""``flumeng site``: other sites whose flows are read here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from cli.context import CliContext, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option
from cli.output import show_json, show_table
from flumeng.control.commands import sites
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError
from flumeng.platform.options.quantities import size

name_argument = click.argument("name", metavar="SITE")
SHOWN_DIGITS = 16


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
) -> None:
    """Add a site with its gateways, or change it: give all options again."""
    if authority and Path(authority).is_file():
        authority = _fingerprint(Path(authority))
    changed = sites.add_site(operator, name, gateways, authority, bytes_per_second=rate, at=at)
    click.echo(f"site {name} {'is known' if changed else 'is as before'}: {', '.join(gateways)}")


@site.command(name="list")
@json_option
@with_store
def list_(_context: CliContext, store: Store, as_json: bool) -> None:
    """List the other sites, and the flows here that read them."""
    here, rows = sites.sites(store)
    if as_json:
        show_json({"here": here or None, "sites": [asdict(row) for row in rows]})
        return
    show_table(
        ("SITE", "GATEWAYS", "AUTHORITY", "READ BY"),
        (
            (row.site, row.gateways, row.authority[:SHOWN_DIGITS] or "plain text", row.readers)
            for row in rows
        ),
    )
    click.echo(f"this cluster is the site {here}" if here else "this cluster has no name")


@site.command()
@name_argument
@json_option
@with_store
def show(_context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show one site."""
    sites.require_site(store, name)
    row = next(row for row in sites.sites(store)[1] if row.site == name)
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
