"""Begins the batches of a job: a few at a time, since each waits for ZooKeeper and for a lake.

A batch is late when it has not begun ``START_SECONDS`` after a thread took it; its job does without
it. One that no thread has taken by the time that its job must go has not begun at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flumeng.agent.collector.slots import Request, bounds
from flumeng.agent.collector.threads import Threads
from flumeng.agent.collector.work import Work

STARTS_AT_ONCE = 8
START_SECONDS = 5.0


@dataclass(eq=False)
class _Start:
    """``taken_at``: when a thread took it. ``left``: its job does without it."""

    request: Request
    most_events: int | None
    taken_at: float | None = None
    ended: bool = False
    left: bool = False
    work: Work | None = None


class Starts:
    """Used from any thread. ``on_late`` is given batches that began after ``begin`` has left them;
    ``clock`` gives seconds that only grow."""

    def __init__(
        self,
        on_late: Callable[[Work], None],
        start_seconds: float = START_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_late = on_late
        self._clock = clock
        self._start_seconds = start_seconds
        self._threads = Threads("start", STARTS_AT_ONCE, limit_seconds=start_seconds, clock=clock)
        self._news = threading.Condition()

    def begin(self, requests: Sequence[Request]) -> tuple[list[Work], list[Request]]:
        """The batches of one job that have begun in time, and the requests that no thread took."""
        starts = [_Start(*pair) for pair in zip(requests, bounds(requests), strict=True)]
        for start in starts:
            self._threads.submit(partial(self._run, start), _ignore)
        take_by = self._clock() + self._start_seconds
        with self._news:
            while (seconds := self._wait_seconds(starts, take_by)) > 0:
                self._news.wait(seconds)
            works = [start.work for start in starts if start.work is not None]
            return works, [start.request for start in starts if start.taken_at is None]

    def look(self) -> None:
        """Replace threads that hang. Called now and then."""
        self._threads.look()

    def _wait_seconds(self, starts: Sequence[_Start], take_by: float) -> float:
        """For how long to wait for the next of them. Leaves those that are over their time."""
        now = self._clock()
        waits = []
        for start in starts:
            if not (start.ended or start.left):
                end = take_by
                if start.taken_at is not None:
                    end = start.taken_at + self._start_seconds
                start.left = now >= end
                waits += [] if start.left else [end - now]
        return min(waits, default=0.0)

    def _run(self, start: _Start) -> None:
        if not self._take(start):
            return
        work = start.request.member.begin(start.most_events)
        if not self._end(start, work) and work is not None:
            self._on_late(work)

    def _take(self, start: _Start) -> bool:
        """Whether it is still to begin."""
        with self._news:
            if not start.left:
                start.taken_at = self._clock()
            return not start.left

    def _end(self, start: _Start, work: Work | None) -> bool:
        """Whether its job has waited for it."""
        with self._news:
            start.ended = True
            if not start.left:
                start.work = work
            self._news.notify_all()
            return not start.left


def _ignore(_seconds: float) -> None:
    """A batch that is late is told to ``on_late`` once it has begun."""
