"""``flumeng console``."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.context import CliContext
from cli.lazy import CommandGroup
from cli.options import Address, optional_inventory_option, optional_zk_option, zk_envvar
from flumeng.control.zookeeper import Store
from flumeng.platform import logs, secrets
from flumeng.platform.security import process
from flumeng.platform.security.expiry import utc_now

if TYPE_CHECKING:
    from flumeng.console.console import Console, Sites

SESSION_SECONDS = 10.0
_M_ARENA_MAX = -8
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--listen",
    type=Address(),
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="The address of its pages; port 0 takes a free one.",
)
@optional_zk_option
@click.option(
    "--allow-changes",
    is_flag=True,
    help="In an open cluster on a loopback address: everybody on this host may change everything, "
    "as all processes that reach ZooKeeper can anyway.",
)
@click.option(
    "--tls",
    is_flag=True,
    help="On a loopback address too: TLS with the identity in FLUMENG_IDENTITY, and certificates "
    "of people. Elsewhere always.",
)
@click.option(
    "--oidc",
    type=FILE,
    metavar="FILE",
    help="People log in at the OpenID provider in this YAML file: issuer, client_id, "
    "client_secret, groups.",
)
@click.option(
    "--tokens",
    type=FILE,
    metavar="FILE",
    help="Programs show tokens, whose digests are in this file; read again when it changes.",
)
@click.option(
    "--key",
    type=FILE,
    metavar="FILE",
    help="The key of sessions, for several consoles behind one address. Default: a new one.",
)
@click.option(
    "--url", default="", metavar="URL", help="The console's address in browsers, as behind a proxy."
)
@click.option(
    "--prometheus",
    metavar="URL",
    help="The Prometheus server that scrapes this cluster: pages of flows show weeks.",
)
@optional_inventory_option
@click.pass_context
def console(
    click_context: click.Context,
    /,
    hosts: str | None,
    prometheus: str | None,
    inventory_directory: Path | None,
    **options: Any,
) -> None:
    """Serve pages and an HTTP API that show and change the cluster, until SIGTERM.

    Prints "ready URL". On a loopback address without --tls, --oidc and --tokens everybody on this
    host may look. Elsewhere the console needs an identity (FLUMENG_IDENTITY) and serves TLS.

    People prove their names with certificates of the cluster or at a login provider, programs with
    tokens. A viewer reads; an operator may change all flows or some. Nobody can do more than the
    console's own certificate. With an inventory its page "Sites" shows the health of all sites.
    """
    if click_context.invoked_subcommand is not None:
        return
    if not hosts:
        raise click.UsageError(f"Missing option '--zk' (env var: '{zk_envvar}').", click_context)
    _keep_small()
    from flumeng.console.serving import Server  # noqa: PLC0415  loads the server
    from flumeng.console.who.start import Options, prepare  # noqa: PLC0415  loads the server

    logs.to_stderr("console")
    context = click_context.ensure_object(CliContext)
    given = Options(**options)
    sites = None
    if inventory_directory is not None:
        from flumeng.fleet.site_watch import SiteWatch  # noqa: PLC0415  only for sites

        sites = SiteWatch(inventory_directory, context.open_site, context.clock)
    with context.store(hosts) as store:
        served = _console(store, hosts, sites, prometheus)
        who, tls = prepare(store, given, process.keystore(), secrets.resolve)
        server = Server(served, given.listen, who, tls)
        click.echo(f"ready {server.url}")
        server.run()


def _console(
    store: Store, hosts: str, sites: Sites | None = None, prometheus: str | None = None
) -> Console:
    """Return a console with what other rooms lend it."""
    from flumeng.agent.dryrun.trials import ProcessTrials  # noqa: PLC0415  loads pyarrow
    from flumeng.connectors.dead_letters.console import ConsoleConnectors  # noqa: PLC0415  loads connectors
    from flumeng.console.console import Console  # noqa: PLC0415  loads the server
    from flumeng.console.prometheus import Prometheus  # noqa: PLC0415  loads the server

    return Console(
        store,
        hosts,
        trials=ProcessTrials(),
        connectors=ConsoleConnectors(),
        sites=sites,
        prometheus=Prometheus(prometheus) if prometheus else None,
    )


@contextmanager
def beside(hosts: str, listen: str, *, allow_changes: bool = False) -> Iterator[str]:
    """Serve a console in a thread of this process, over a connection of its own, and yield its
    address. Its options are the defaults. Raises UserError for an address that cannot be used."""
    from flumeng.console.serving import Server  # noqa: PLC0415  loads the server
    from flumeng.console.who.start import Options, prepare  # noqa: PLC0415  loads the server
    from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore  # noqa: PLC0415  loads kazoo

    with closing(ZooKeeperStore(hosts, SESSION_SECONDS)) as store:
        served = _console(store, hosts)
        keystore = process.keystore()
        options = Options(listen, allow_changes=allow_changes and keystore is None)
        who, tls = prepare(store, options, keystore, secrets.resolve)
        server = Server(served, listen, who, tls)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


def _keep_small() -> None:
    """Let the threads that ask nodes share one arena: each of its own keeps freed memory."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:  # musl has none
        tell(_M_ARENA_MAX, 1)


@console.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--role",
    type=click.Choice(("viewer", "operator", "admin")),
    default="viewer",
    show_default=True,
    help="Its rights.",
)
@click.option(
    "--flow",
    "flows",
    multiple=True,
    metavar="FLOW",
    help="A flow that an operator's token may change; * stands for any text. Default: all.",
)
@click.option(
    "--days",
    type=click.IntRange(0, 3650),
    default=365,
    show_default=True,
    help="How long it is valid, from today on.",
)
def token(name: str, role: Any, flows: tuple[str, ...], days: int) -> None:
    """Make a token for a program, and print it with its line for the file of --tokens.

    The program sends the token in the header `Authorization: Bearer TOKEN`. The file has only the
    token's digest, below `tokens:`. Remove the line to revoke the token.
    """
    from flumeng.console.who.tokens import new_token  # noqa: PLC0415  loads the parser

    until = f"{utc_now() + timedelta(days=days):%Y-%m-%d}"
    text, line = new_token(name, role, flows, until)
    click.echo(f'{text}\nIts line, below "tokens:" in the file of --tokens:\n{line}')
