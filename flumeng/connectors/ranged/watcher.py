"""How far partitions of a server can be read now: one thread for all tasks that ask one server.

The server is asked again and again, for all watched partitions together. A server that does not
answer is asked less and less often, and costs the flows of other servers nothing.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from flumeng.platform import vital
from flumeng.platform.errors import FlumengError, UnavailableError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.3
QUIET_SECONDS = 1.0
"""Between two requests while no partition changes."""
QUIET_AFTER_SECONDS = 10.0
BACKOFF_MOST_SECONDS = 10.0

EndT = TypeVar("EndT")


@dataclass(frozen=True)
class _Owner:
    partitions: frozenset[str]
    on_change: Callable[[], None]


class EndWatcher(ABC, Generic[EndT]):
    """Polls the ends of partitions. Its public methods may be called from any thread and do not
    block. Its thread runs while a task watches. ``clock`` gives seconds that only grow.

    A subclass asks the server, and says what an error means for all partitions.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._owners: dict[Hashable, _Owner] = {}
        self._ends: dict[str, EndT] = {}
        self._requests = itertools.count(1)
        self._not_before: dict[str, int] = {}
        self._wake = threading.Event()
        self._runs = False
        self._changed_at = float("-inf")
        self._failures = 0

    @abstractmethod
    def ask(self, partitions: frozenset[str]) -> dict[str, EndT]:
        """Ask the server, in the watcher's thread. Lacks partitions of which it says nothing.
        Raises UnavailableError when it does not answer, other errors when a person is needed."""

    @abstractmethod
    def failed(self, why: str) -> EndT:
        """What is known of each partition after an error other than UnavailableError."""

    def watch(
        self, owner: Hashable, partitions: Iterable[str], on_change: Callable[[], None]
    ) -> None:
        """Watch these partitions in place of those that this owner watched before. ``on_change``
        only enqueues; it is called after each change of what ``of`` returns for them."""
        with self._lock:
            self._owners[owner] = _Owner(frozenset(partitions), on_change)
            if not self._runs:
                self._runs = True
                vital.start(self._name, self._run)
        self._wake.set()

    def forget(self, owner: Hashable) -> None:
        with self._lock:
            self._owners.pop(owner, None)
        self._wake.set()

    def of(self, partitions: Iterable[str]) -> dict[str, EndT]:
        """The ends as last polled; lacks those of which the server says nothing now."""
        found = ((name, self._ends.get(name)) for name in partitions)
        return {name: end for name, end in found if end is not None}

    def refresh(self, partitions: Collection[str]) -> None:
        """What ``of`` returns of these next is from after this call."""
        with self._lock:
            number = next(self._requests)
            self._not_before.update(dict.fromkeys(partitions, number))
            for name in partitions:
                self._ends.pop(name, None)
        self._wake.set()

    # From here on everything happens in the watcher's thread.

    def _run(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                wanted = frozenset[str]().union(*(o.partitions for o in self._owners.values()))
                number = next(self._requests)
                if not self._owners:
                    self._runs = False
                    self._ends, self._not_before = {}, {}
                    return
            self._poll(wanted, number)
            self._wake.wait(self._pause())

    def _pause(self) -> float:
        if self._failures:
            return float(min(POLL_SECONDS * 2**self._failures, BACKOFF_MOST_SECONDS))
        quiet = self._clock() - self._changed_at > QUIET_AFTER_SECONDS
        return QUIET_SECONDS if quiet else POLL_SECONDS

    def _poll(self, wanted: frozenset[str], number: int) -> None:
        try:
            ends = self.ask(wanted)
        except UnavailableError as error:
            self._fail(logging.WARNING, error)
            ends = {}
        except FlumengError as error:
            self._fail(logging.ERROR, error)
            ends = dict.fromkeys(wanted, self.failed(str(error)))
        except Exception as error:
            log.exception("%s: a fault while the server was asked", self._name)
            self._failures = min(self._failures + 1, 10)
            ends = dict.fromkeys(wanted, self.failed(f"a fault of the connector: {error!r}"))
        else:
            if self._failures:
                log.info("%s: the server answers again", self._name)
            self._failures = 0
        self._learn(ends, number)

    def _fail(self, level: int, error: FlumengError) -> None:
        if not self._failures:
            log.log(level, "%s: partitions wait: %s", self._name, error)
        self._failures = min(self._failures + 1, 10)

    def _learn(self, ends: dict[str, EndT], number: int) -> None:
        with self._lock:
            ends = {n: one for n, one in ends.items() if number > self._not_before.get(n, 0)}
            changed = {n for n in ends.keys() | self._ends if ends.get(n) != self._ends.get(n)}
            self._ends = ends
            self._not_before = {n: at for n, at in self._not_before.items() if n not in ends}
            calls = [o.on_change for o in self._owners.values() if o.partitions & changed]
        if changed:
            self._changed_at = self._clock()
        for call in calls:
            call()
