"""What the pages and the API share: one connection, one copy of the cluster, one picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flumeng.console.asking import Asking
from flumeng.console.pictures import Pictures
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


class Connectors(Protocol):
    """Reads what flows write. The room ``connectors`` has it, above this one."""

    def check_columns(self, store: Store, text: str) -> str:
        """Check a flow that reads after the filters of another site. Returns a warning, or an empty
        text; raises SpecError."""

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


@dataclass(frozen=True)
class Console:
    """``clock``: seconds since the epoch; ``monotonic``: seconds. ``hosts``: how command lines name
    the cluster. ``inventory``: a directory of sites, or empty."""

    store: Store
    hosts: str = ""
    asking: Asking = field(default_factory=Asking)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    trials: Trials | None = None
    connectors: Connectors | None = None
    inventory: str = ""
    prometheus: str = ""
    copy: WatchedCopy = field(init=False)
    pictures: Pictures = field(init=False)

    def __post_init__(self) -> None:
        copy = WatchedCopy(self.store)
        object.__setattr__(self, "copy", copy)
        object.__setattr__(
            self, "pictures", Pictures(copy, self.asking, self.clock, self.monotonic)
        )

    def operator(self, viewer: Viewer, reason: str) -> Operator:
        """Return the author of a change: the viewer's proven name is in the audit."""
        return Operator(self.store, author=viewer.name, reason=reason, now=self.clock())
