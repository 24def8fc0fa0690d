"""How far each task of a collector is behind, for its metrics. It asks no server.

A task notes the ack and the end of its partitions at each look for a batch. The time of a lag is
that of the last end that is acked by now, so a flow that always has events on their way has a small
lag.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flumeng.control.snapshot.partitions import distance

SPACING = 0.25
"""Ends are noted at intervals of this part of the lag, which bounds its error."""
LEAST_SECONDS = 1.0


class Place(NamedTuple):
    """Events below ``ack`` are delivered; the partition ends at ``end``, None when unknown."""

    ack: int
    end: int | None


class Lag(NamedTuple):
    """``events`` wait; everything that arrived ``seconds`` ago or earlier is delivered."""

    events: int
    seconds: float


@dataclass
class _Behind:
    """A partition with waiting events or an unknown end. Everything that had arrived at ``since``
    is acked. ``marks``: (second, end at that time), above the ack."""

    since: float
    events: int = 0
    marks: deque[tuple[float, int]] = field(default_factory=deque)

    def see(self, ack: int, end: int, events: int, now: float) -> None:
        while self.marks and self.marks[0][1] <= ack:
            self.since, _ = self.marks.popleft()
        newest = self.marks[-1][0] if self.marks else -float("inf")
        if now - newest >= max(LEAST_SECONDS, SPACING * (now - self.since)):
            self.marks.append((now, end))
        self.events = events


class Lags:
    """The lags of one process's tasks, for any thread. ``clock`` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tasks: dict[str, dict[str, _Behind]] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def see(self, task: str, places: Mapping[str, Place]) -> None:
        """Note the partitions of the task ``flow/task``."""
        now = self._clock()
        with self._lock:
            old = self._tasks.get(task, {})
            found: dict[str, _Behind] = {}
            for name, (ack, end) in places.items():
                events = 0 if end is None else distance(name, ack, end)
                if end is None or events > 0:
                    found[name] = old.get(name) or _Behind(now)
                    if end is not None:
                        found[name].see(ack, end, events, now)
            self._tasks[task] = found
            self._names[task] = frozenset(places)

    def lose(self, task: str) -> None:
        """The task has failed: whether its partitions grow is unknown from now on."""
        now = self._clock()
        with self._lock:
            for name in self._names.get(task, ()):
                self._tasks[task].setdefault(name, _Behind(now))

    def forget(self, task: str) -> None:
        with self._lock:
            self._tasks.pop(task, None)
            self._names.pop(task, None)

    def keep(self, tasks: Collection[str]) -> None:
        """Forget all other tasks."""
        with self._lock:
            for gone in self._tasks.keys() - set(tasks):
                del self._tasks[gone], self._names[gone]

    def by_flow(self) -> dict[str, Lag]:
        """The sum of events and the largest time over each flow's tasks."""
        now = self._clock()
        found: dict[str, Lag] = {}
        with self._lock:
            for task, behind in self._tasks.items():
                flow = task.partition("/")[0]
                events, seconds = found.get(flow, Lag(0, 0.0))
                events += sum(one.events for one in behind.values())
                seconds = max([seconds, *(now - one.since for one in behind.values())])
                found[flow] = Lag(events, seconds)
        return found
