"""``flumeng cluster secure``: the certificates of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from cli.lazy import CommandGroup
from cli.options import json_option
from cli.output import show_json, show_table
from flumeng.platform.errors import UserError
from flumeng.platform.security import enrolment, expiry
from flumeng.platform.security.authority import load_authority
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.roles import DIRECTORY, Role
from flumeng.platform.security.signing import make_key

DAYS = 365
authority_option = click.option(
    "--authority",
    envvar="FLUMENG_AUTHORITY",
    show_envvar=True,
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory that `cluster secure init` has made.",
)
to_option = click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory for the files. Default: NAME.",
)
host_option = click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A host name or address at which others connect to it; can be given several times.",
)
days_option = click.option(
    "--days",
    type=click.FloatRange(min=0.01, max=3650),
    default=DAYS,
    show_default=True,
    help="The validity.",
)


@click.group(cls=CommandGroup)
def secure() -> None:
    """Certificates that identify a process or a person; each cluster has its own authority."""


@secure.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--cluster", default="flumeng", show_default=True, help="The name of the cluster.")
@click.option(
    "--ca-certificate",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="An existing authority, followed by those above it, in PEM.",
)
@click.option(
    "--ca-key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Its key, without a password.",
)
@click.option("--admin", default="admin", show_default=True, help="Your name.")
def init(
    folder: Path, *, cluster: str, ca_certificate: Path | None, ca_key: Path | None, admin: str
) -> None:
    """Make the authority of a new cluster in DIR, and your own certificate in DIR/ADMIN.

    The holder of DIR/ca.key can impersonate anybody there: keep DIR on a host without daemons.
    """
    if (ca_certificate is None) != (ca_key is None):
        raise UserError("give --ca-certificate and --ca-key together")
    given = None
    if ca_certificate is not None and ca_key is not None:
        given = load_authority(ca_certificate.read_bytes(), ca_key.read_bytes())
    now = utc_now()
    issuer = enrolment.create_authority(folder, cluster, given, now)
    issuer.fill(folder / admin, ["admin"], admin, (), days=DAYS, now=now)
    click.echo(
        f"{folder} is the authority of cluster {cluster}\n"
        f"{folder / admin} is yours: export {DIRECTORY}={(folder / admin).resolve()}"
    )


@secure.command()
@click.argument("role", type=click.Choice(get_args(Role)), metavar="ROLE")
@click.argument("name", metavar="NAME")
@authority_option
@to_option
@host_option
@days_option
def issue(
    role: Role,
    name: str,
    *,
    authority: Path,
    folder: Path | None,
    hosts: tuple[str, ...],
    days: float,
) -> None:
    """Issue or renew the certificate of a person, a master or a server.

    ROLE is admin, operator, viewer, subscriber, master or zookeeper; hosts that run a node get
    their certificates with `flumeng node enroll`.
    """
    fill(authority, folder or Path(name), (role,), name, hosts=hosts, days=days)


@secure.command("signing-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
def signing_key(file: Path) -> None:
    """Make a key in FILE that signs revisions of flows, and print its public half.

    Set `FLUMENG_SIGNING_KEY` to FILE where flows are applied, and name the public half in `signers`
    of the policy files of nodes: these then run only flows that were applied with the key.
    """
    click.echo(make_key(file))


@click.command()
@click.argument("name", metavar="NODE")
@authority_option
@to_option
@host_option
@click.option(
    "--role",
    "node_roles",
    multiple=True,
    type=click.Choice(list(enrolment.OF_NODE_ROLES)),
    default=("ingest", "collect", "replica"),
    show_default=True,
    help="As for `node run`: the host gets no certificates of other roles; may be given again.",
)
@days_option
def enroll(
    name: str,
    *,
    authority: Path,
    folder: Path | None,
    hosts: tuple[str, ...],
    node_roles: tuple[str, ...],
    days: float,
) -> None:
    """Issue or renew the certificates for the host of node NODE.

    Run it where the authority is, copy the directory to the host, and start the node with
    `FLUMENG_IDENTITY` set to its path there. Processes load renewed files automatically.
    """
    needed = [role for given in node_roles for role in enrolment.OF_NODE_ROLES[given]]
    fill(
        authority, folder or Path(name), tuple(dict.fromkeys(needed)), name, hosts=hosts, days=days
    )


@secure.command()
@click.argument(
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    envvar=DIRECTORY,
    metavar="[DIR]",
)
@json_option
def show(folder: Path, *, as_json: bool) -> None:
    """Show the certificates in DIR and their validity. Exit code 1 if one cannot be used."""
    rows = expiry.described(folder, utc_now())
    if as_json:
        show_json(rows)
    else:
        fields = ("role", "name", "cluster", "until", "days_left", "problem")
        headers = ("ROLE", "NAME", "CLUSTER", "UNTIL (UTC)", "DAYS LEFT", "PROBLEM")
        show_table(headers, ([row.get(field) for field in fields] for row in rows))
    if any("problem" in row or row["days_left"] <= 0 for row in rows):
        raise SystemExit(1)


def fill(
    authority: Path,
    folder: Path,
    roles: tuple[Role, ...],
    name: str,
    *,
    hosts: tuple[str, ...],
    days: float,
) -> None:
    issuer = enrolment.open_authority(authority)
    issuer.fill(folder, roles, name, hosts, days=days, now=utc_now())
    click.echo(
        f"{folder} has the {'certificate' if len(roles) == 1 else 'certificates'} of {name} for "
        f"{', '.join(roles)}: copy it to its host, and set {DIRECTORY} to its path there"
    )
