"""What the pages and the API share: one connection, one copy of the cluster, one picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flumeng.console.asking import Asking
from flumeng.console.pictures import Pictures
from flumeng.console.shared_answers import SharedAnswers
from flumeng.console.watched_copy import WatchedCopy
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Store


class Trials(Protocol):
    """Runs filters on events in this process. The room ``agent`` has it, above this one."""

    def tap(
        self,
        store: Store,
        flow: str,
        *,
        at: str | None,
        where: str | None,
        seconds: float,
        most: int,
    ) -> Iterator[Mapping[str, Any]]:
        """Yield events of a running flow as they arrive, as `flumeng flow tap --json` does."""

    def explain(
        self, text: str, events: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """Return what each filter of a flow's text does to each event, as `flow try --explain`."""


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


@dataclass(frozen=True)
class Console:
    """``clock``: seconds since the epoch; ``monotonic``: seconds. ``hosts``: how command lines name
    the cluster. ``sites``: None without an inventory."""

    store: Store
    hosts: str = ""
    asking: Asking = field(default_factory=Asking)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    trials: Trials | None = None
    sites: Sites | None = None
    prometheus: str = ""
    copy: WatchedCopy = field(init=False)
    pictures: Pictures = field(init=False)
    shared: SharedAnswers = field(init=False)

    def __post_init__(self) -> None:
        copy = WatchedCopy(self.store)
        object.__setattr__(self, "copy", copy)
        object.__setattr__(
            self, "pictures", Pictures(copy, self.asking, self.clock, self.monotonic)
        )
        object.__setattr__(self, "shared", SharedAnswers(self.monotonic))

    def operator(self, viewer: Viewer, reason: str) -> Operator:
        """Return the author of a change: the viewer's proven name is in the audit."""
        return Operator(self.store, author=viewer.name, reason=reason, now=self.clock())
