"""What became of the events of each task in the last 1, 5 and 15 minutes.

It is told to whoever asks this process and lies nowhere else: a task that comes from another node,
or under another epoch, begins to count anew and says since when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flumeng.platform.metrics.moving_counts import MovingCounts

PROCESSED, DROPPED, PARSE_ERRORS, DEAD_LETTERS = COUNTED = (
    "processed",
    "dropped",
    "parse_errors",
    "dead_letters",
)


@dataclass
class _Task:
    """``unknown``: what nobody counts of it."""

    epoch: int
    since: float
    counts: MovingCounts
    unknown: frozenset[str] = frozenset()


class TaskCounts:
    """For any thread. ``clock`` gives seconds that only grow, ``wall`` those since the epoch."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._tasks: dict[str, _Task] = {}
        self._lock = threading.Lock()

    def begin(self, key: str, epoch: int) -> None:
        """The task ``flow/task`` is claimed; under the epoch that is known it goes on counting."""
        with self._lock:
            known = self._tasks.get(key)
            if known is None or known.epoch != epoch:
                since = round(self._wall(), 3)
                self._tasks[key] = _Task(epoch, since, MovingCounts(self._clock))

    def add(self, key: str, counts: Mapping[str, int | None]) -> None:
        """Of a batch that is committed; None is what nobody has counted."""
        with self._lock:
            task = self._tasks.get(key)
            if task is not None:
                task.unknown = frozenset(name for name, count in counts.items() if count is None)
                task.counts.add({name: count or 0 for name, count in counts.items()})

    def keep(self, keys: Collection[str]) -> None:
        """Forget the tasks that this process does not have any more."""
        with self._lock:
            self._tasks = {key: task for key, task in self._tasks.items() if key in keys}

    def rows(self) -> list[dict[str, Any]]:
        """One a task, as JSON: by name what was counted in each window, None where nobody does."""
        with self._lock:
            return [_row(key, task) for key, task in sorted(self._tasks.items())]


def _row(key: str, task: _Task) -> dict[str, Any]:
    sums = task.counts.sums()
    known = {
        name: {window: counts[name] for window, counts in sums.items()}
        for name in COUNTED
        if name not in task.unknown
    }
    flow, _, name = key.partition("/")
    return {
        "flow": flow,
        "task": name,
        "epoch": task.epoch,
        "since": task.since,
        "counts": {name: known.get(name) for name in COUNTED},
    }
