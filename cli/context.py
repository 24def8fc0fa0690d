"""Click's context object: the connections, clocks and services that commands use."""

from __future__ import annotations

import functools
import getpass
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from cli.options import reason_option, zk_option
from cli.output import warn
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import conditions, counters, journals, offset_lookup, target_checks
from flumeng.control.queries.acks import Ask, ask_worker
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import Store
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError
from flumeng.platform.security import credentials
from flumeng.platform.security.roles import PEOPLE
from zkschema import paths

if TYPE_CHECKING:
    from flumeng.fleet.inventory import Site

P = ParamSpec("P")
R = TypeVar("R")

CONNECT_SECONDS = 5.0
SESSION_SECONDS = 4.0
PATIENCE_SECONDS = 1.0

Names = Mapping[str, Sequence[str]]
"""Names for completion by kind (``flow``, ``node``, ``task``)."""


def connect(hosts: str) -> Store:
    """Connect to ZooKeeper. Gives up after ``CONNECT_SECONDS``, or some seconds later during an
    attempt. Raises as ``kazoo_store.connect``."""
    from flumeng.control.zookeeper import kazoo_store  # noqa: PLC0415  loads kazoo

    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # our own error explains it better
    return kazoo_store.connect(hosts, session_seconds=SESSION_SECONDS, wait_seconds=CONNECT_SECONDS)


def open_site(site: Site) -> Store:
    """Connect to a site within the inventory's timeout. Raises UnavailableError and UserError."""
    from flumeng.control.zookeeper import kazoo_store  # noqa: PLC0415  loads kazoo

    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    credential = secrets.resolve(site.credential) if site.credential else ""
    return kazoo_store.connect(
        site.zookeeper, wait_seconds=site.connect_seconds, credential=credential
    )


def _who() -> str:
    """Return the author of changes: the identity in the certificate, or without one USER@HOST."""
    own = credentials.load(*PEOPLE)
    return str(own.identity) if own else f"{getpass.getuser()}@{socket.gethostname()}"


def read_names(store: Store) -> Names:
    flows = store.children(paths.flows())
    tasks = [
        f"{flow}/{task}"
        for flow, plan in read_plans(store, flows).items()
        for task in sorted(plan.value.tasks)
    ]
    return {"flow": flows, "node": store.children(paths.nodes()), "task": tasks}


class Lookup:
    """Reads names for completion in the background; ``known`` has the last ones."""

    def __init__(self, ask: Callable[[], Names]) -> None:
        self.known: Names = {}
        self._ask = ask
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start reading in the background, unless a read is under way."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="names", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> Names:
        if self._thread is not None:
            self._thread.join(seconds)
        return self.known

    def _run(self) -> None:
        try:
            self.known = self._ask()
        except FlumengError:
            return


class ConnectionPool:
    def __init__(self, connect: Callable[[str], Store]) -> None:
        self._connect = connect
        self._stores: dict[str, Store] = {}
        self._lookups: dict[str, Lookup] = {}
        self._lock = threading.Lock()

    def store(self, hosts: str) -> Store:
        """Return the connection to a cluster, made on first use by ``connect``. Thread-safe."""
        with self._lock:
            if hosts not in self._stores:
                self._stores[hosts] = self._connect(hosts)
            return self._stores[hosts]

    def lookup(self, hosts: str) -> Lookup:
        if hosts not in self._lookups:
            self._lookups[hosts] = Lookup(lambda: read_names(self.store(hosts)))
        return self._lookups[hosts]

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


@dataclass(frozen=True)
class CliContext:
    """The services that commands use. ``clock``: seconds since the epoch; ``monotonic``: seconds.
    The shell keeps connections made by ``connect``, not those by ``open_site``."""

    connect: Callable[[str], Store] = connect
    ask: Ask = ask_worker
    who: Callable[[], str] = _who
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    pool: ConnectionPool | None = None
    accounts: journals.Ask = journals.ask_worker
    replicas: journals.AskReplicas = journals.ask_replicas
    counters: counters.Ask = counters.ask_worker
    offsets: offset_lookup.Ask = offset_lookup.ask_discovery
    targets: target_checks.Ask = target_checks.ask_node
    open_site: Callable[[Site], Store] = open_site

    @contextmanager
    def store(self, hosts: str) -> Iterator[Store]:
        """Yield an open store; close it afterwards unless connections are kept."""
        if self.pool is not None:
            yield self.pool.store(hosts)
            return
        with closing(self.connect(hosts)) as store:
            yield store

    def look_up(self, hosts: str | None) -> None:
        if hosts and self.pool is not None:
            self.pool.lookup(hosts).start()

    def names(self, hosts: str) -> Names:
        """Return names for completion: at once if connections are kept, else within a second."""
        if self.pool is not None:
            return self.pool.lookup(hosts).known

        def ask() -> Names:
            with self.store(hosts) as store:
                return read_names(store)

        lookup = Lookup(ask)
        lookup.start()
        return lookup.wait(PATIENCE_SECONDS)

    def operator(self, store: Store, reason: str) -> Operator:
        return Operator(store, author=self.who(), reason=reason, now=self.clock())

    def wait_for(self, missing: Callable[[], Sequence[str]], timeout_seconds: float) -> None:
        """Wait until ``missing()`` is empty, and report changes on a terminal. After the timeout
        print the missing parts and exit with code 1."""
        still = conditions.wait_for(
            missing,
            timeout_seconds=timeout_seconds,
            monotonic=self.monotonic,
            sleep=self.sleep,
            tell=_tell if sys.stderr.isatty() else lambda _missing: None,
        )
        if still:
            warn(f"not within {timeout_seconds:g} s; still missing:")
            for line in still:
                click.echo(f"- {line}", err=True)
            raise SystemExit(1)


def _tell(missing: Sequence[str]) -> None:
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        click.echo(f"waiting: {missing[0]}{more}", err=True)


def with_store(command: Callable[Concatenate[CliContext, Store, P], R]) -> Callable[P, R]:
    """Add ``--zk`` to a command; it gets the context and its open ``CliContext.store``."""

    @zk_option
    @functools.wraps(command)
    def opened(*args: P.args, **options: P.kwargs) -> R:
        context = click.get_current_context().ensure_object(CliContext)
        hosts: Any = options.pop("hosts")
        with context.store(hosts) as store:
            return command(context, store, *args, **options)

    return opened


def with_operator(command: Callable[Concatenate[CliContext, Operator, P], R]) -> Callable[P, R]:
    """Add ``--zk`` and ``--reason``; the command gets the context and an operator."""

    @reason_option
    @with_store
    @functools.wraps(command)
    def opened(context: CliContext, store: Store, /, *args: P.args, **options: P.kwargs) -> R:
        reason: Any = options.pop("reason")
        return command(context, context.operator(store, reason), *args, **options)

    return opened


class Name(click.types.StringParamType):
    def __init__(self, kind: str) -> None:
        self.name = kind

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002  click's
        incomplete: str,
    ) -> list[CompletionItem]:
        hosts = ctx.params.get("hosts") or os.environ.get("FLUMENG_ZK")
        context = ctx.find_object(CliContext) or CliContext()
        names = context.names(hosts).get(self.name, ()) if hosts else ()
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


flow_argument = click.argument("name", type=Name("flow"), metavar="FLOW")
