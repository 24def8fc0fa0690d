"""The Spark jobs of a collector: a bounded number at once, each for one batch or many small ones.

What a batch holds is decided when its job starts, not when its task asked, so batches grow by
themselves while jobs are scarce. Every job has a limit. One that is over it is ended: its batches
have hung, and their tasks begin anew. When Spark does not even end a job that was cancelled, it
can do nothing any more, and ``on_stuck`` is told.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from flumeng.collector.slots import Request, Slots
from flumeng.collector.threads import Threads
from flumeng.collector.work import BrokenTogetherError, HungError, Outcome, Work

log = logging.getLogger(__name__)

APART_SLOTS = 2
STARTS_AT_ONCE = 8
START_SECONDS = 5.0
SHARED_LIMIT_SECONDS = 60.0
CANCEL_SECONDS = 30.0


class Engine(Protocol):
    """Runs batches. ``Spark`` is the one that ships."""

    def write(self, works: Sequence[Work], job: str, slot: str) -> Sequence[Outcome]:
        """Run all of ``works`` as one job of that name, and give the outcome of each.

        Several are shareable. Raises when the job as a whole broke down. Called from one thread a
        slot.
        """

    def cancel(self, job: str) -> None:
        """Let ``write`` raise soon."""


class Member(Protocol):
    """A task that asks for slots."""

    def begin(self) -> Work | None:
        """Decide the batch and stage it; None when there is nothing to write any more.

        Raises nothing. Called once for each request, from a thread of its own kind.
        """


@dataclass(eq=False)
class _Job:
    name: str
    works: Sequence[Work]
    began: float
    limit_seconds: float
    ended_at: float | None = None
    """When it was given up, if it was."""


class Jobs:
    """Used from any thread. ``slots`` jobs run at once, and ``APART_SLOTS`` for tasks apart."""

    def __init__(
        self,
        engine: Engine,
        slots: int,
        *,
        on_stuck: Callable[[str], None],
        shared_limit_seconds: float = SHARED_LIMIT_SECONDS,
        cancel_seconds: float = CANCEL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._on_stuck = on_stuck
        self._shared_limit_seconds = shared_limit_seconds
        self._cancel_seconds = cancel_seconds
        self._clock = clock
        self._news = threading.Condition()
        self._slots = Slots()
        self._members: dict[str, Member] = {}
        self._jobs: dict[str, _Job] = {}
        self._numbers = itertools.count(1)
        self._starts = Threads("start", STARTS_AT_ONCE, limit_seconds=START_SECONDS, clock=clock)
        for number in range(slots):
            self._open(f"job-{number}", apart=False)
        for number in range(APART_SLOTS):
            self._open(f"job-apart-{number}", apart=True)

    @property
    def load(self) -> tuple[int, int]:
        """How many jobs run, and how many tasks wait for a slot."""
        with self._news:
            return len(self._jobs), len(self._slots)

    def ask(self, member: Member, request: Request) -> None:
        """Call ``member.begin`` when it is its turn."""
        with self._news:
            self._slots.ask(request)
            self._members[request.key] = member
            self._news.notify_all()

    def withdraw(self, key: str) -> bool:
        """Ask no more; False when ``begin`` was called, or will be in a moment."""
        with self._news:
            return self._slots.withdraw(key) and self._members.pop(key, None) is not None

    def cancel(self, work: Work) -> None:
        """End the job of ``work``, unless it is the job of others too."""
        with self._news:
            names = [job.name for job in self._jobs.values() if list(job.works) == [work]]
        for name in names:
            self._cancel(name)

    def look(self) -> None:
        """End what is over its limit. Called now and then."""
        self._starts.look()
        now = self._clock()
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
            text = f"a batch has hung: no end after {job.limit_seconds:.0f} s"
            for work in job.works:
                work.done(HungError(text))
            self._cancel(job.name)
        for job in stuck:
            self._on_stuck(f"{job.name} was cancelled {self._cancel_seconds:.0f} s ago and goes on")

    def _open(self, slot: str, *, apart: bool) -> None:
        threading.Thread(target=self._work, args=(slot, apart), name=slot, daemon=True).start()

    def _work(self, slot: str, apart: bool) -> None:
        while True:
            with self._news:
                while not (requests := self._slots.next(apart=apart)):
                    self._news.wait()
                members = [self._members.pop(request.key) for request in requests]
            works = self._begin(members)
            if works:
                self._run(works, slot)

    def _begin(self, members: Sequence[Member]) -> list[Work]:
        """What those have to write that can say so in time; the others have hung."""
        begun: list[Future[Work | None]] = []
        for member in members:
            future: Future[Work | None] = Future()
            begun.append(future)
            self._starts.submit(partial(_begin, member, future), _ignore)
        ready, late = wait(begun, START_SECONDS)
        for future in late:
            future.add_done_callback(_give_back)
        works = [future.result() for future in begun if future in ready]
        return [work for work in works if work is not None]

    def _run(self, works: Sequence[Work], slot: str) -> None:
        limit = works[0].limit_seconds if len(works) == 1 else self._shared_limit_seconds
        job = _Job(f"{slot}.{next(self._numbers)}", works, self._clock(), limit)
        with self._news:
            self._jobs[job.name] = job
        try:
            outcomes = self._engine.write(works, job.name, slot)
        except Exception as error:
            if len(works) > 1:
                log.warning("a job for %d batches broke down: %s", len(works), error)
                error = BrokenTogetherError(str(error))
            outcomes = [error] * len(works)
        with self._news:
            del self._jobs[job.name]
            ended = job.ended_at is not None
            if len(works) > 1:
                self._slots.measured(len(works), self._clock() - job.began)
        if not ended:
            for work, outcome in zip(works, outcomes, strict=True):
                work.done(outcome)

    def _cancel(self, name: str) -> None:
        """In a thread of its own, since Spark may not answer."""
        threading.Thread(target=self._engine.cancel, args=(name,), daemon=True).start()


def _begin(member: Member, future: Future[Work | None]) -> None:
    future.set_result(member.begin())


def _ignore(_seconds: float) -> None:
    """The batches that did not begin in time are told by ``_give_back``."""


def _give_back(future: Future[Work | None]) -> None:
    """A batch that began too late for its job."""
    work = future.result()
    if work is not None:
        work.done(HungError(f"the batch could not be staged within {START_SECONDS:.0f} s"))
