"""``flumeng console``."""

from __future__ import annotations

import click

from cli.context import CliContext, with_store
from cli.options import Address
from flumeng.control.zookeeper import Store
from flumeng.platform import logs


@click.command()
@click.option(
    "--listen",
    type=Address(),
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="The address of its pages; port 0 takes a free one.",
)
@with_store
def console(_context: CliContext, store: Store, listen: str) -> None:
    """Serve pages and an HTTP API that show and change the cluster, until SIGTERM.

    Prints "ready URL". On a loopback address everybody on this host may look.
    """
    from flumeng.agent.dryrun.trials import ProcessTrials  # noqa: PLC0415  loads pyarrow
    from flumeng.connectors.dead_letters.of_flow import DeadLettersHere  # noqa: PLC0415  loads pyarrow
    from flumeng.console.console import Console  # noqa: PLC0415  loads the server
    from flumeng.console.serving import Server  # noqa: PLC0415  loads the server
    from flumeng.console.who.viewers import Viewer  # noqa: PLC0415  loads the server

    logs.to_stderr("console")
    shared = Console(store, trials=ProcessTrials(), dead_letters=DeadLettersHere())
    server = Server(shared, listen, lambda _request: Viewer("anonymous"))
    click.echo(f"ready {server.url}")
    server.run()
