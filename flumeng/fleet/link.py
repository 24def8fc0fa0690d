"""A connection to one site that is restored when it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from flumeng.control.zookeeper import Store
from flumeng.fleet.inventory import Site
from flumeng.platform.errors import UnavailableError

R = TypeVar("R")

RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class Clocks:
    """``now``: seconds since the epoch, for display; ``monotonic``: seconds."""

    now: Callable[[], float]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


class Link:
    """``connect`` raises ``UnavailableError`` when the site does not answer in its time."""

    def __init__(self, site: Site, connect: Callable[[Site], Store], clocks: Clocks) -> None:
        self._site = site
        self._connect = connect
        self._clocks = clocks
        self._store: Store | None = None

    def do(self, step: Callable[[Store], R]) -> R:
        """The step's result. It is repeated when the connection breaks, so it must check what is
        done already. Raises ``UnavailableError`` after the site's time limit."""
        deadline = self._clocks.monotonic() + self._site.turn_seconds
        while True:
            try:
                if self._store is None:
                    self._store = self._connect(self._site)
                return step(self._store)
            except UnavailableError:
                self.close()
                if self._clocks.monotonic() >= deadline:
                    raise
                self._clocks.sleep(RETRY_SECONDS)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
