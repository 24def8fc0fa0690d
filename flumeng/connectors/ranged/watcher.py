"""Last reported ends of partitions, shared by all tasks of a process."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from flumeng.platform import fail_fast
from flumeng.platform.errors import FlumengError, UnavailableError
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)

POLL_SECONDS = 0.3
QUIET_SECONDS = 1.0
"""Interval of polls while no partition changes."""
QUIET_AFTER_SECONDS = 10.0
BACKOFF_MOST_SECONDS = 10.0

EndT = TypeVar("EndT")


@dataclass(frozen=True)
class _Owner:
    partitions: frozenset[str]
    on_change: Callable[[], None]


class WatchedEnds(ABC, Generic[EndT]):
    """Last known ends of watched partitions; calls owners on changes. Thread-safe, non-blocking.
    After a ``refresh`` of a partition, answers to earlier requests are ignored for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[Hashable, _Owner] = {}
        self._owners_of: defaultdict[str, set[Hashable]] = defaultdict(set)
        self._ends: dict[str, EndT] = {}
        self._not_before: dict[str, int] = {}
        self._requests = itertools.count(1)

    def watch(
        self, owner: Hashable, partitions: Iterable[str], on_change: Callable[[], None]
    ) -> None:
        """Replace the owner's watched partitions. ``on_change`` only enqueues; it is called after
        each change of the result of ``of``, except by ``refresh``."""
        with self._lock:
            self._drop(owner)
            self._owners[owner] = _Owner(frozenset(partitions), on_change)
            for name in self._owners[owner].partitions:
                self._owners_of[name].add(owner)
        self._on_owners()

    def forget(self, owner: Hashable) -> None:
        with self._lock:
            self._drop(owner)
        self._on_owners()

    def of(self, partitions: Iterable[str]) -> dict[str, EndT]:
        """Return the last known ends; omits partitions whose end is unknown now."""
        ends = ((name, self._ends.get(name)) for name in partitions)
        return {name: end for name, end in ends if end is not None}

    def refresh(self, partitions: Collection[str]) -> None:
        """Make the next ends that ``of`` returns for these partitions newer than this call."""
        with self._lock:
            number = next(self._requests)
            for name in partitions:
                if name in self._owners_of:
                    self._not_before[name] = number
                    self._ends.pop(name, None)
        self._on_refresh(partitions)

    @abstractmethod
    def _on_owners(self) -> None:
        """Called when the set of watched partitions has changed."""

    @abstractmethod
    def _on_refresh(self, partitions: Collection[str]) -> None:
        """Request the ends of these partitions again soon."""

    def _watched(self) -> frozenset[str]:
        """Return all watched partitions, and forget the refreshes of other partitions."""
        with self._lock:
            watched = frozenset(self._owners_of)
            self._not_before = {n: at for n, at in self._not_before.items() if n in watched}
        return watched

    def _learn(self, ends: Mapping[str, EndT], number: int) -> bool:
        """Store the answer to the request ``number``. Returns whether it changes anything."""
        with self._lock:
            fresh = {
                name: end
                for name, end in ends.items()
                if number > self._not_before.get(name, 0) and self._ends.get(name) != end
            }
            self._ends |= fresh
        return self._call_owners(fresh)

    def _lose(self, partitions: Iterable[str]) -> bool:
        """Remove these partitions' ends, which are unknown now. Returns whether any was known."""
        with self._lock:
            lost = [name for name in partitions if self._ends.pop(name, None) is not None]
        return self._call_owners(lost)

    def _call_owners(self, partitions: Collection[str]) -> bool:
        with self._lock:
            owners = {owner for name in partitions for owner in self._owners_of.get(name, ())}
            calls = [self._owners[owner].on_change for owner in owners]
        for call in calls:
            call()
        return bool(partitions)

    def _drop(self, owner: Hashable) -> None:
        gone = self._owners.pop(owner, None)
        for name in gone.partitions if gone else ():
            self._owners_of[name].discard(owner)
            if not self._owners_of[name]:
                del self._owners_of[name]


class EndWatcher(WatchedEnds[EndT]):
    """Poller of the ends of one server's partitions. Its thread runs while a task watches, and
    backs off while requests fail. ``clock``: monotonic seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._name = name
        self._clock = clock
        self._wake = threading.Event()
        self._runs = False
        self._changed_at = float("-inf")
        self._failures = 0
        self._trouble = TroubleLog(log)

    @abstractmethod
    def ask(self, partitions: frozenset[str]) -> dict[str, EndT]:
        """Request the ends, in the watcher's thread. Omits unreported partitions. Raises
        UnavailableError when the server does not answer, other errors when a person has to act."""

    @abstractmethod
    def failed(self, why: str) -> EndT:
        """Return the end of each partition after an error other than UnavailableError."""

    def _on_owners(self) -> None:
        with self._lock:
            if self._owners and not self._runs:
                self._runs = True
                fail_fast.start(self._name, self._run)
        self._wake.set()

    def _on_refresh(self, partitions: Collection[str]) -> None:
        del partitions  # all are requested together
        self._wake.set()

    # All methods below run in the watcher's thread.

    def _run(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                number = next(self._requests)
                if not self._owners:
                    self._runs = False
                    self._ends, self._not_before = {}, {}
                    return
            self._poll(self._watched(), number)
            self._wake.wait(self._pause())

    def _pause(self) -> float:
        if self._failures:
            return float(min(POLL_SECONDS * 2**self._failures, BACKOFF_MOST_SECONDS))
        quiet = self._clock() - self._changed_at > QUIET_AFTER_SECONDS
        return QUIET_SECONDS if quiet else POLL_SECONDS

    def _poll(self, partitions: frozenset[str], number: int) -> None:
        try:
            ends = self.ask(partitions)
        except UnavailableError as error:
            self._fail(logging.WARNING, str(error))
            ends = {}
        except FlumengError as error:
            self._fail(logging.ERROR, str(error))
            ends = dict.fromkeys(partitions, self.failed(str(error)))
        except Exception as error:
            why = f"unexpected error: {error!r}"
            self._fail(logging.ERROR, why, error)
            ends = dict.fromkeys(partitions, self.failed(why))
        else:
            self._trouble.end("%s: the server answers again", self._name)
            self._failures = 0
        learned = self._learn(ends, number)
        lost = self._lose(self._ends.keys() - ends.keys())
        if learned or lost:
            self._changed_at = self._clock()

    def _fail(self, level: int, why: str, cause: Exception | None = None) -> None:
        text = "%s: no new events are read, the ends of partitions are asked for again: %s"
        self._trouble.log(level, text, self._name, why, cause=cause, kind=level)
        self._failures = min(self._failures + 1, 10)
