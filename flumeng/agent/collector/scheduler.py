"""Runs the turns of a collector's tasks on a bounded number of threads. A turn is one step of a
task. It is started by an event of the task, or by the timer of the task's last turn. A wake-up
carries no data: the turn checks everything. A task is in one turn at a time."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flumeng.agent.collector.threads import Threads
from flumeng.platform import fail_fast

TURNS_AT_ONCE = 48
TURN_SECONDS = 30.0


class Actor(Protocol):
    def turn(self) -> float | None:
        """Do the next step; return the seconds until the next turn, None to wait for a wake-up.
        Raises nothing."""

    def on_hang(self, seconds: float) -> None:
        """Report a turn that has taken this long; called once per turn, from another thread."""


@dataclass(eq=False)
class _Entry:
    """A scheduled actor. ``again``: woken during the current turn. ``due``: when its timer ends."""

    actor: Actor
    queued: bool = False
    running: bool = False
    again: bool = False
    due: float | None = None


class Scheduler:
    """Runs the turns of actors; thread-safe. ``turns``: number of turns so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.turns = 0
        self._clock = clock
        self._threads = Threads("turn", TURNS_AT_ONCE, limit_seconds=TURN_SECONDS)
        self._news = threading.Condition()
        self._entries: dict[Actor, _Entry] = {}
        self._timers: list[tuple[float, int, _Entry]] = []
        self._numbers = itertools.count()
        fail_fast.start("timers", self._ring)

    def add(self, actor: Actor) -> None:
        with self._news:
            self._entries[actor] = _Entry(actor)
        self.wake(actor)

    def remove(self, actor: Actor) -> None:
        with self._news:
            self._entries.pop(actor, None)

    def wake(self, actor: Actor) -> None:
        with self._news:
            entry = self._entries.get(actor)
            if entry is not None:
                self._wake(entry)

    def wake_all(self) -> None:
        with self._news:
            for entry in self._entries.values():
                self._wake(entry)

    def check_limits(self) -> None:
        self._threads.check_limits()

    def _wake(self, entry: _Entry) -> None:
        if entry.running:
            entry.again = True
        elif not entry.queued:
            entry.queued = True
            self._threads.submit(lambda: self._turn(entry), entry.actor.on_hang)

    def _turn(self, entry: _Entry) -> None:
        with self._news:
            entry.queued = False
            if self._entries.get(entry.actor) is not entry:
                return
            entry.running, entry.again, entry.due = True, False, None
            self.turns += 1
        seconds = entry.actor.turn()
        with self._news:
            entry.running = False
            if entry.again or seconds == 0.0:
                self._wake(entry)
            elif seconds is not None:
                entry.due = self._clock() + seconds
                heapq.heappush(self._timers, (entry.due, next(self._numbers), entry))
                if self._timers[0][2] is entry:
                    self._news.notify()

    def _ring(self) -> None:
        with self._news:
            while True:
                now = self._clock()
                while self._timers and self._timers[0][0] <= now:
                    due, _, entry = heapq.heappop(self._timers)
                    if entry.due == due:
                        entry.due = None
                        self._wake(entry)
                self._news.wait(max(0.0, self._timers[0][0] - now) if self._timers else None)
