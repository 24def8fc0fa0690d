"""The commands that run until SIGTERM."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

import click

from cli.console import beside as serve_beside
from cli.options import (
    Address,
    console_option,
    data_option,
    metrics_option,
    session_option,
    zk_option,
)
from flumeng.agent.standalone import zookeeper_supervisor
from flumeng.platform import logs

PORT = click.IntRange(0, 65535)


@click.command()
@data_option
@click.option("--zk-port", type=PORT, default=0, help="ZooKeeper's port; 0 takes a free one.")
@click.option(
    "--flow",
    "flows",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Apply this flow file at start; may be given again.",
)
@click.option(
    "--metrics",
    type=Address(),
    metavar="HOST:PORT",
    default="127.0.0.1:0",
    show_default=True,
    help="Serve /metrics for Prometheus, /healthz and /readyz there; port 0 takes a free one.",
)
@console_option
def standalone(
    data: Path, zk_port: int, flows: tuple[Path, ...], metrics: str, console: str | None
) -> None:
    """Run a whole cluster on this host: ZooKeeper, a master and a node.

    Prints "ready zk=HOST:PORT/CHROOT metrics=URL" when all flows run, or those of --flow do and
    others failed or take long. On SIGTERM all three stop; their state stays in the data directory.
    With --console everybody on this host may change the cluster there.
    """
    from flumeng.agent.standalone import standalone as cluster  # noqa: PLC0415  loads the daemons
    from flumeng.config.flow_files import read_flows  # noqa: PLC0415  loads the daemons

    texts = [file.text for file in read_flows(flows)]
    logs.to_stderr("standalone")
    with ExitStack() as stack:

        def beside(hosts: str) -> Mapping[str, str]:
            if console is None:
                return {}
            return {
                "console": stack.enter_context(serve_beside(hosts, console, allow_changes=True))
            }

        cluster.run(data, zk_port=zk_port, flows=texts, metrics=metrics, beside=beside)


@click.command()
@data_option
@click.option("--port", type=PORT, default=2181, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--plain-port", type=PORT, help="Open a plain port too, to move a cluster over.")
def zookeeper(data: Path, port: int, host: str, plain_port: int | None) -> None:
    """Run a ZooKeeper server, for one host or for tests.

    It is the real server, alone. With an identity (FLUMENG_IDENTITY) its port accepts only holders
    of a certificate of the cluster; without one, everybody: listen on trusted addresses only. A
    server that ends unexpectedly, as on a full disk, is restarted.
    """
    logs.to_stderr("zookeeper")
    sys.exit(zookeeper_supervisor.run(data, port, host=host, plain_port=plain_port))


@click.command()
@zk_option
@click.option("--name", help="The displayed name; by default host name and a random part.")
@session_option
@metrics_option
@console_option
def master(
    hosts: str, name: str | None, session_seconds: float, metrics: str | None, console: str | None
) -> None:
    """Run a master; any number of them may run."""
    from flumeng.control.master import daemon  # noqa: PLC0415  loads the daemons

    logs.to_stderr("master")
    with serve_beside(hosts, console) if console is not None else nullcontext():
        daemon.run(hosts, name=name, session_seconds=session_seconds, metrics=metrics)
