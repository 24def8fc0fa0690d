"""The Spark jobs of a collector: a bounded number at once, each for one batch or many small ones.

A batch's size is decided when its job starts, so batches grow while jobs are scarce. A job over its
limit is cancelled, and its batch counts as hung; the batches of a shared one run apart then.
``on_stuck`` is called when Spark does not end it. Batches that take more than ``START_SECONDS`` to
begin run later, in jobs of their own.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from flumeng.agent.collector.batch import Pipeline, Work
from flumeng.agent.collector.outcome import BrokenTogetherError, CutShortError, HungError, Outcome
from flumeng.agent.collector.slot import APART, FAILING, SHARED, Request, Slots, bounds
from flumeng.agent.collector.threads import Threads
from flumeng.platform import fail_fast

log = logging.getLogger(__name__)

APART_SLOTS = 2
SHARED_LIMIT_SECONDS = 60.0
CANCEL_SECONDS = 30.0
STARTS_AT_ONCE = 8
START_SECONDS = 5.0


class Engine(Protocol):
    def write(self, works: Sequence[Work], job: str, slot: str) -> Sequence[Outcome]:
        """Write ``works`` in one Spark job and return each outcome; several works must be
        shareable. Raises when the whole job failed. Called from one thread per slot."""

    def cancel(self, job: str) -> None:
        """Cancel the job, so that its ``write`` raises soon."""

    def warm_up(self, pipeline: Pipeline) -> None:
        """Prepare Spark for the next batch. Called repeatedly for standbys. Raises as ``write``."""


@dataclass(eq=False)
class _Job:
    name: str
    works: Sequence[Work]
    began: float
    limit_seconds: float
    ended_at: float | None = None


class Jobs:
    """Runs batches as Spark jobs; thread-safe. ``slots`` jobs run at once, one more of failing
    tasks, and up to ``APART_SLOTS`` more of tasks that must not share. ``running_jobs``: a context
    entered around each job, given its flows."""

    def __init__(
        self,
        engine: Engine,
        slots: int,
        *,
        on_stuck: Callable[[str], None],
        running_jobs: Callable[[Collection[str]], AbstractContextManager[None]] | None = None,
        shared_limit_seconds: float = SHARED_LIMIT_SECONDS,
        cancel_seconds: float = CANCEL_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._engine = engine
        self._on_stuck = on_stuck
        self._running_jobs = running_jobs or (lambda _flows: nullcontext())
        self._suspects: frozenset[str] = frozenset()
        self.shared_limit_seconds = shared_limit_seconds
        self._cancel_seconds = cancel_seconds
        self.start_seconds = start_seconds
        self._news = threading.Condition()
        self._slots = Slots()
        self._late: deque[Work] = deque()
        """Batches whose jobs started without them. They may be acked, so none is dropped."""
        self._jobs: dict[str, _Job] = {}
        self._numbers = itertools.count(1)
        self._starts = Starts(self._on_late, start_seconds)
        for number in range(slots):
            self._open(f"job-{number}", SHARED)
        self._open("job-failing", FAILING)
        for number in range(APART_SLOTS):
            self._open(f"job-apart-{number}", APART, spare=number > 0)

    @property
    def suspects(self) -> frozenset[str]:
        """Flows of which one crashes this process: their jobs run one at a time, unshared."""
        return self._suspects

    @suspects.setter
    def suspects(self, flows: frozenset[str]) -> None:
        with self._news:
            self._suspects = flows
            self._news.notify_all()

    @property
    def load(self) -> tuple[int, int]:
        with self._news:
            return len(self._jobs), len(self._slots)

    def ask(self, request: Request) -> None:
        with self._news:
            self._slots.ask(request)
            self._news.notify_all()

    def warm_up(self, pipeline: Pipeline) -> None:
        self._engine.warm_up(pipeline)

    def withdraw(self, request: Request) -> bool:
        """Withdraw a waiting request. False when its batch has begun, or is about to."""
        with self._news:
            return self._slots.withdraw(request)

    def cancel(self, work: Work) -> None:
        with self._news:
            names = [job.name for job in self._jobs.values() if list(job.works) == [work]]
        for name in names:
            self._cancel(name)

    def check_limits(self) -> None:
        """Cancel jobs over their time limit; report those that do not end. Called every second."""
        self._starts.check_limits()
        now = time.monotonic()
        with self._news:
            late = [
                job
                for job in self._jobs.values()
                if job.ended_at is None and now - job.began >= job.limit_seconds
            ]
            for job in late:
                job.ended_at = now
            stuck = [
                job
                for job in self._jobs.values()
                if job.ended_at is not None and now - job.ended_at >= self._cancel_seconds
            ]
        for job in late:
            for work in job.works:
                work.done(_over_limit(work, job))
            self._cancel(job.name)
        for job in stuck:
            self._on_stuck(
                f"Spark job {job.name} runs {self._cancel_seconds:.0f} s after its cancel"
            )

    def _open(self, slot: str, lane: str, *, spare: bool = False) -> None:
        fail_fast.start(slot, partial(self._work, slot, lane, spare))

    def _work(self, slot: str, lane: str, spare: bool) -> None:
        """Run jobs in a slot, forever. A ``spare`` slot pauses while there are suspects."""
        while True:
            with self._news:
                while True:
                    still = spare and bool(self._suspects)
                    may = lane == APART and self._late and not still
                    late = [self._late.popleft()] if may else []
                    requests = [] if late or still else self._slots.next(lane)
                    if late or requests:
                        break
                    self._news.wait()
            began = time.monotonic()
            works = late
            if not late:
                works, unreached = self._starts.begin(requests)
                for request in unreached:  # they ask again
                    self.ask(request)
            hung = bool(works) and self._run(works, slot)
            if lane == SHARED and len(requests) > 1 and not hung:
                with self._news:
                    self._slots.measured(len(requests), time.monotonic() - began)

    def _on_late(self, work: Work) -> None:
        with self._news:
            self._late.append(work)
            self._news.notify_all()

    def _run(self, works: Sequence[Work], slot: str) -> bool:
        """Run one job. Return whether a batch has hung: then the job's time is not measured."""
        limit = works[0].limit_seconds if len(works) == 1 else self.shared_limit_seconds
        job = _Job(f"{slot}.{next(self._numbers)}", works, time.monotonic(), limit)
        with self._news:
            self._jobs[job.name] = job
        try:
            with self._running_jobs({work.pipeline.spec.flow for work in works}):
                outcomes = self._engine.write(works, job.name, slot)
        except Exception as error:
            if len(works) > 1:
                log.warning("a Spark job failed, its %d batches run apart: %s", len(works), error)
                error = BrokenTogetherError(str(error))
            outcomes = [error] * len(works)
        with self._news:
            del self._jobs[job.name]
            ended = job.ended_at is not None
        if not ended:
            for work, outcome in zip(works, outcomes, strict=True):
                work.done(outcome)
        kinds = HungError | CutShortError
        return ended or any(isinstance(outcome, kinds) for outcome in outcomes)

    def _cancel(self, name: str) -> None:
        """Cancel a job from a new thread, since Spark may not answer."""
        threading.Thread(target=self._engine.cancel, args=(name,), daemon=True).start()


def _over_limit(work: Work, job: _Job) -> Exception:
    if len(job.works) > 1:
        return BrokenTogetherError(f"a Spark job has not ended after {job.limit_seconds:g} s")
    sinks = [leaf.place for leaf in work.pipeline.spec.leaves]
    return HungError.after(job.limit_seconds, sinks)


@dataclass(eq=False)
class _Start:
    """One batch's start. ``taken_at``: when a thread took it. ``left``: the job left without it."""

    request: Request
    most_events: int | None
    taken_at: float | None = None
    ended: bool = False
    left: bool = False
    work: Work | None = None


class Starts:
    """Begins the batches of a job in threads. ``on_late`` gets batches that begin after ``begin``
    has stopped waiting for them."""

    def __init__(
        self, on_late: Callable[[Work], None], start_seconds: float = START_SECONDS
    ) -> None:
        self._on_late = on_late
        self._start_seconds = start_seconds
        self._threads = Threads("start", STARTS_AT_ONCE, limit_seconds=start_seconds)
        self._news = threading.Condition()

    def begin(self, requests: Sequence[Request]) -> tuple[list[Work], list[Request]]:
        """Begin batches; return those that began in time, and the requests that no thread took."""
        starts = [_Start(*pair) for pair in zip(requests, bounds(requests), strict=True)]
        for start in starts:
            self._threads.submit(partial(self._run, start), _ignore)
        take_by = time.monotonic() + self._start_seconds
        with self._news:
            while (seconds := self._wait_seconds(starts, take_by)) > 0:
                self._news.wait(seconds)
            works = [start.work for start in starts if start.work is not None]
            return works, [start.request for start in starts if start.taken_at is None]

    def check_limits(self) -> None:
        self._threads.check_limits()

    def _wait_seconds(self, starts: Sequence[_Start], take_by: float) -> float:
        now = time.monotonic()
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
        with self._news:
            begins = not start.left
            start.taken_at = time.monotonic() if begins else None
        if not begins:
            return
        work = start.request.member.begin(start.most_events)
        with self._news:
            start.ended = True
            late = start.left
            start.work = None if late else work
            self._news.notify_all()
        if late and work is not None:
            self._on_late(work)


def _ignore(_seconds: float) -> None:
    """Ignore a slow start: its batch is passed to ``on_late`` once it has begun."""
