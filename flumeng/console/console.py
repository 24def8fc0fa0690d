"""The parts that pages and the API share: a connection, a copy of the cluster, its picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from flumeng.console.asking import Asking
from flumeng.console.lag_history import LagHistory
from flumeng.console.node_connections import NodeConnections
from flumeng.console.pictures import Pictures
from flumeng.console.prometheus import Prometheus
from flumeng.console.shared_answers import SharedAnswers
from flumeng.console.watched_copy import WatchedCopy
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.lag import LagOfFlow, lag_of_flow
from flumeng.control.zookeeper import ReadableStore, Store
from flumeng.platform.errors import UnavailableError

T = TypeVar("T")


class Trials(Protocol):
    """Runs filters on events in this process. The room ``agent`` has it, above this one."""

    def tap(
        self,
        operator: Operator,
        flow: str,
        *,
        at: str | None,
        where: str | None,
        seconds: float,
        most: int,
    ) -> Iterator[Mapping[str, Any] | None]:
        """Yield events of a running flow as they arrive, as `flumeng flow tap --json` does, and
        None at least once a second. Keeps an audit entry first. Ends after ``seconds``, or after
        ``most`` events. Raises UserError, UnavailableError."""

    def explain(
        self, text: str, events: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """Return what each filter of a flow's text does to each event, as `flow try --explain
        --json`, each step also with its ``outcome`` in words and the row ``before`` it. An event
        has a ``body`` and, if given, ``host``, ``attrs`` and ``ts``. Raises UserError for filters
        that run code or read files, UnavailableError when it takes too long."""


class Sites(Protocol):
    """The last answers of the sites of an inventory. The room ``fleet`` has it, above this one."""

    @property
    def problem(self) -> str:
        """Why the inventory cannot be read; else empty."""

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each site, without asking it: as `flumeng push status --json`, with
        ``wave``, ``asked`` (seconds since the epoch, None before its first answer), ``reads``
        (its links to other sites) and ``leases`` of others there."""

    def start(self) -> None:
        """Ask the sites in the background until ``stop``."""

    def stop(self) -> None: ...


class Connectors(Protocol):
    """Reads the targets of flows. The room ``connectors`` has it, above this one."""

    def check_columns(self, store: Store, text: str) -> str:
        """Check a flow that reads after the filters of another site. Returns a warning, or an empty
        text; raises SpecError."""

    def kinds(self, store: ReadableStore, flow: str) -> Mapping[str, Any]:
        """Return the counts of dead letters as `flumeng flow dead list --json`. Raises UserError
        when they cannot be read from this host."""

    def newest(self, store: ReadableStore, flow: str, most: int, reason: str) -> Sequence[str]:
        """Return at most ``most`` dead letters with ``reason`` in theirs, the newest first, as
        `flumeng flow dead show --json` prints them."""

    def replay(
        self, operator: Operator, flow: str, choice: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Callable[[], None]]:
        """Start a replay of dead letters. Returns the JSON of `flumeng flow dead replay`, and what
        writes its list, before the operator commits."""

    def purge(
        self, operator: Operator, flow: str, choice: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Callable[[], None]]:
        """Audit a purge of dead letters. Returns the JSON of `flumeng flow dead purge --dry-run`,
        and the deletion, which may be repeated."""


def _asking() -> Asking:
    """Return questions to nodes that share connections."""
    nodes = NodeConnections(time.monotonic)
    return Asking(accounts=nodes.accounts, counters=nodes.counters)


@dataclass(frozen=True)
class Console:
    """``clock``: seconds since the epoch; ``monotonic``: seconds. ``hosts``: how command lines name
    the cluster. ``sites``: None without an inventory."""

    store: Store
    hosts: str = ""
    asking: Asking = field(default_factory=_asking)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    trials: Trials | None = None
    sites: Sites | None = None
    connectors: Connectors | None = None
    prometheus: Prometheus | None = None
    copy: WatchedCopy = field(init=False)
    pictures: Pictures = field(init=False)
    shared: SharedAnswers = field(init=False)
    lags: LagHistory = field(init=False)

    def __post_init__(self) -> None:
        copy = WatchedCopy(self.store)
        object.__setattr__(self, "copy", copy)
        object.__setattr__(
            self, "pictures", Pictures(copy, self.asking, self.clock, self.monotonic)
        )
        object.__setattr__(self, "shared", SharedAnswers(self.monotonic))
        object.__setattr__(self, "lags", LagHistory(self.lag, self.monotonic))

    def lag(self, flow: str) -> LagOfFlow:
        """Return how far a flow is behind, as its nodes answer; viewers share the answer. Raises
        as ``lag_of_flow``."""

        def ask() -> LagOfFlow:
            with self.copy.query() as cache:
                return lag_of_flow(cache, self.asking.accounts, flow, self.clock())

        return self.shared.answer(("lag", flow), ask)

    @property
    def away_since(self) -> float | None:
        """Since when ZooKeeper has not answered, in seconds since the epoch; None if it does."""
        if not self.copy.away:
            return None
        return self.pictures.latest.away_since or self.clock()

    def operator(self, viewer: Viewer, reason: str) -> Operator:
        """Return the author of a change: the viewer's proven name is in the audit."""
        return Operator(self.store, author=viewer.name, reason=reason, now=self.clock())


def lent(part: T | None, command: str) -> T:
    """Return a part of another room. Raises UnavailableError, with the ``command`` to use, in a
    console without it."""
    if part is None:
        raise UnavailableError(f"this console has no access to this: use `flumeng {command}`")
    return part
