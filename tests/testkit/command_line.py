"""A command line on a fake cluster, to test commands: nothing is patched, a context is given."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from click.testing import CliRunner, Result

from cli.context import CliContext
from cli.main import tree
from flumeng.control.zookeeper import Store
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import UnavailableError
from tests.testkit.store import FakeStore, FakeTree

NOON = 1_700_000_000.0
THAW_SECONDS = 60.0
"""A test that forgets a frozen connection ends nevertheless."""


def leaves(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command with its name, such as ``flow:apply``."""
    parent = click.Context(group)
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*before, name))
        else:
            yield ":".join((*before, name)), command


@dataclass(frozen=True)
class Reached:
    """The end of a journal, as its node answers."""

    floor: int
    safe: int


@dataclass
class Shell:
    """Runs commands against one tree, each with a session of its own.

    ``trees`` maps connect strings to other trees. Those in ``frozen`` connect only after ``thawed``
    is set, those in ``away`` never; ``connected`` lists all requested connections. ``positions``,
    ``held`` (the ends of replicas) and ``counted`` are the answers of workers by address; other
    addresses do not answer. ``node_accounts`` are answers that are not made of ``positions``.
    ``kept`` are the offsets of a discovery process: by partition, the answer for ``earliest``,
    ``latest`` or a time. ``lags`` are the missing events of a journal's replicas on other nodes, as
    its primary reports them. ``cut`` takes ZooKeeper away. ``meanwhile`` runs whenever a command
    sleeps, which takes no time here.
    """

    tree: FakeTree
    positions: dict[str, Mapping[str, Reached]] = field(default_factory=dict)
    held: dict[str, Mapping[str, int]] = field(default_factory=dict)
    counted: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    kept: dict[str, Mapping[str, int]] = field(default_factory=dict)
    lags: dict[str, Mapping[str, int]] = field(default_factory=dict)
    node_accounts: dict[str, Mapping[str, Account]] = field(default_factory=dict)
    trees: dict[str, FakeTree] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    thawed: threading.Event = field(default_factory=threading.Event)
    away: set[str] = field(default_factory=set)
    connected: list[str] = field(default_factory=list)
    cut: bool = False
    meanwhile: Callable[[], object] = lambda: None
    seconds: float = 0.0

    def connect(self, hosts: str) -> Store:
        self.connected.append(hosts)
        if hosts in self.frozen:
            self.thawed.wait(THAW_SECONDS)
        if self.cut or hosts in self.away:
            raise UnavailableError(f"ZooKeeper at {hosts} did not answer")
        return FakeStore(self.trees.get(hosts, self.tree))

    def ask(self, address: str) -> Mapping[str, Reached]:
        if address not in self.positions:
            raise UnavailableError(f"{address} did not answer")
        return self.positions[address]

    def accounts(self, address: str) -> Mapping[str, Account]:
        """Accounts of journals on disk with 100 bytes an event; the oldest event was received a
        minute ago."""
        if address in self.node_accounts:
            return self.node_accounts[address]
        return {
            name: Account(
                term=1,
                durability="disk",
                floor=reached.floor,
                acked=reached.floor,
                safe=reached.safe,
                bytes=100 * (reached.safe - reached.floor),
                max_bytes=1 << 30,
                lost=0,
                waits_at=None,
                closed=False,
                oldest_unacked_us=int((NOON - 60) * 1e6) if reached.safe > reached.floor else None,
                lags=self.lags.get(name, {}),
            )
            for name, reached in self.ask(address).items()
        }

    def replicas(self, address: str) -> Mapping[str, int]:
        return self.held.get(address, {})

    def counters(self, address: str) -> list[dict[str, Any]]:
        if address not in self.counted and address not in self.positions:
            raise UnavailableError(f"{address} did not answer")
        return self.counted.get(address, [])

    def offsets(
        self, _address: str, _flow: str, partitions: Collection[str], to: str
    ) -> Mapping[str, int]:
        return {name: self.kept[name][to] for name in partitions if to in self.kept.get(name, {})}

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.meanwhile()

    def context(self) -> CliContext:
        return CliContext(
            self.connect,
            self.ask,
            lambda: "ann@ops",
            lambda: NOON,
            lambda: self.seconds,
            self.sleep,
            accounts=self.accounts,
            replicas=self.replicas,
            counters=self.counters,
            offsets=self.offsets,
            open_site=lambda site: self.connect(site.zookeeper),
        )

    def run(self, *words: object, typed: str | None = None, zk: str | None = "zk:1/c") -> Result:
        return CliRunner().invoke(
            tree, [str(word) for word in words], obj=self.context(), input=typed,
            env={"FLUMENG_ZK": zk}, catch_exceptions=False,
        )  # fmt: skip

    def json(self, *words: object) -> Any:
        return json.loads(self.run(*words, "--json").stdout)
