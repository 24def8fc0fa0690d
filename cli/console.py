"""``flumeng console``."""

from __future__ import annotations

import ctypes
from pathlib import Path

import click

from cli.context import CliContext, with_store
from cli.options import Address, optional_inventory_option
from flumeng.control.zookeeper import Store
from flumeng.platform import logs

_M_ARENA_MAX = -8


@click.command()
@click.option(
    "--listen",
    type=Address(),
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="The address of its pages; port 0 takes a free one.",
)
@optional_inventory_option
@with_store
def console(
    context: CliContext, store: Store, listen: str, inventory_directory: Path | None
) -> None:
    """Serve pages and an HTTP API that show and change the cluster, until SIGTERM.

    Prints "ready URL". On a loopback address everybody on this host may look. With an
    inventory its page "Sites" shows the health of all sites.
    """
    _keep_small()
    from flumeng.console.console import Console  # noqa: PLC0415  loads the server
    from flumeng.console.serving import Server  # noqa: PLC0415  loads the server
    from flumeng.console.who.viewers import Viewer  # noqa: PLC0415  loads the server

    logs.to_stderr("console")
    sites = None
    if inventory_directory is not None:
        from flumeng.fleet.site_watch import SiteWatch  # noqa: PLC0415  only for sites

        sites = SiteWatch(inventory_directory, context.open_site, context.clock)
    server = Server(Console(store, sites=sites), listen, lambda _request: Viewer("anonymous"))
    click.echo(f"ready {server.url}")
    server.run()


def _keep_small() -> None:
    """Let the threads that ask nodes share one arena: each of its own keeps freed memory."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:  # musl has none
        tell(_M_ARENA_MAX, 1)
