"""A small thread pool for many mostly idle jobs; a job never runs on two threads at once, and a
waiting job occupies no thread."""

from __future__ import annotations

import collections
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from math import inf

log = logging.getLogger(__name__)

KEEP_SECONDS = 10.0

Steps = Iterator[float | None]
"""The steps of a job; each yields the maximum seconds to wait, or None to wait until woken."""


class SharedThreads:
    def __init__(self, most: int, name: str, keep_seconds: float = KEEP_SECONDS) -> None:
        self._most = most
        self._keep_seconds = keep_seconds
        self._name = name
        self._changed = threading.Condition()
        self._ready: collections.deque[Job] = collections.deque()
        self._timers: list[tuple[float, int, Job]] = []
        self._order = itertools.count()
        self._threads = 0
        self._idle = 0
        self._running: set[Job] = set()
        self._awaited = inf
        self._window = 0
        self._busy = self._busy_before = 0

    @property
    def busy(self) -> int:
        """The number of jobs with work in the last or the current second, whichever is higher."""
        past = int(time.monotonic()) - self._window
        return max(self._busy, self._busy_before) if past <= 0 else self._busy if past == 1 else 0

    @property
    def threads(self) -> int:
        return self._threads

    @property
    def is_crowded(self) -> bool:
        due = bool(self._timers) and self._timers[0][0] <= time.monotonic()
        return (bool(self._ready) or due) and not self._idle

    def job(self, steps: Steps, name: str = "") -> Job:
        return Job(self, steps, name)

    def stuck(self, seconds: float) -> str:
        """Return the name of the running job that has made no progress for longest, if at least
        ``seconds``; else an empty string."""
        with self._changed:
            last = min(self._running, key=lambda job: job.went_on_at, default=None)
        if last is None or time.monotonic() - last.went_on_at < seconds:
            return ""
        return last.name

    def _wake(self, job: Job, after_seconds: float) -> None:
        with self._changed:
            due = time.monotonic() + after_seconds
            if job.running:
                job.again_at = min(job.again_at, due)
            elif due < job.due_at:
                self._plan(job, due, now=after_seconds <= 0)

    def _plan(self, job: Job, due: float, *, now: bool) -> None:
        """Set the time of the job's next run instead of an earlier one, with the lock held."""
        job.due_at = -inf if now else due
        if now:
            self._ready.append(job)
        elif due < inf:
            heapq.heappush(self._timers, (due, next(self._order), job))
        else:
            return
        if now or due < self._awaited:
            self._rouse()

    def _rouse(self) -> None:
        """Wake or start a thread; called with the lock held. If none can be started, running
        threads take the job later. Raises RuntimeError when no thread runs."""
        if self._idle:
            self._changed.notify()
        elif self._threads < self._most:
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError:
                if not self._threads:
                    raise
            else:
                self._threads += 1

    def _run(self) -> None:
        while (job := self._next()) is not None:
            wait: float | None = None
            ended = False
            try:
                wait = next(job.steps)
            except StopIteration:
                ended = True
            except Exception:
                log.exception("job %s failed, and stops until a restart", job.name or self._name)
                ended = True
            with self._changed:
                self._running.discard(job)
                if ended:
                    continue
                job.running = False
                now = time.monotonic()
                due = min(job.again_at, inf if wait is None else now + wait)
                job.again_at = job.due_at = inf
                self._plan(job, due, now=due <= now)

    def _next(self) -> Job | None:
        with self._changed:
            end_at = time.monotonic() + self._keep_seconds
            self._idle += 1
            while not self._take_due():
                now = time.monotonic()
                first = self._timers[0][0] if self._timers else inf
                if now >= end_at and (self._idle > 1 or first == inf):
                    self._idle -= 1
                    self._threads -= 1
                    return None
                if first < self._awaited:
                    self._awaited = first
                    self._changed.wait(first - now)
                    if self._awaited == first:
                        self._awaited = inf
                else:
                    self._changed.wait(max(end_at - now, 1.0))
            self._idle -= 1
            job = self._ready.popleft()
            job.running = True
            job.went_on()
            self._running.add(job)
            if self._ready or (self._timers and self._awaited == inf):
                self._rouse()
            return job

    def _count(self, job: Job) -> None:
        window = int(time.monotonic())
        if window != self._window:
            self._busy_before = self._busy if window == self._window + 1 else 0
            self._window, self._busy = window, 0
        if job.window != window:
            job.window = window
            self._busy += 1

    def _take_due(self) -> bool:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            due, _, job = heapq.heappop(self._timers)
            if job.due_at == due and not job.running:
                job.due_at = -inf
                self._ready.append(job)
        return bool(self._ready)


class Job:
    """``due_at``: next run. ``window``: second of last work. ``went_on_at``: last progress."""

    __slots__ = (
        "_threads",
        "again_at",
        "due_at",
        "name",
        "running",
        "steps",
        "went_on_at",
        "window",
    )

    def __init__(self, threads: SharedThreads, steps: Steps, name: str) -> None:
        self.steps = steps
        self.name = name
        self.went_on_at = -inf
        self.running = False
        self.due_at = inf
        self.again_at = inf
        self.window = 0
        self._threads = threads

    def has_work(self) -> None:
        """Count the job as busy in this second."""
        with self._threads._changed:
            self._threads._count(self)

    def wake(self, after_seconds: float = 0.0) -> None:
        """Run the job within ``after_seconds`` once a thread is free; does not wait for it. Raises
        RuntimeError when no thread can be started."""
        self._threads._wake(self, after_seconds)

    def went_on(self) -> None:
        """Report progress within a step of unbounded length."""
        self.went_on_at = time.monotonic()
