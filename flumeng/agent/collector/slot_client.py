"""A claimed task's access to slots: requests a slot, begins the batch, records the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch, Pipeline, Work
from flumeng.agent.collector.claim import REMOTE_BATCHES_AT_ONCE, ClaimedTask
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.outcome import Outcome
from flumeng.agent.collector.slot import Request
from flumeng.control.zookeeper.tree import TreeIdentity


class SlotClient:
    """Requests slots for one claim. ``begin`` and outcomes come from threads of ``jobs``, all other
    calls from the task's turns unless noted. While ``asking`` is set, no turn reads a backlog."""

    def __init__(
        self,
        assignment: Assignment,
        pipeline: Pipeline,
        task: ClaimedTask,
        jobs: Jobs,
        wake: Callable[[], None],
        *,
        tree: TreeIdentity,
        for_repeat: bool = False,
    ) -> None:
        self.assignment = assignment
        self.for_repeat = for_repeat
        """Whether ``pipeline`` serves only to repeat the open intent of an older revision."""
        self.task = task
        self.tree = tree
        self.handoff = 0
        self.withdrawn = False
        """Whether no more batches begin; running ones may continue."""
        self.slow = False
        """Whether the last batch began so slowly that the next must not share a job."""
        self.error: Exception | None = None
        self.pipeline = pipeline
        self._jobs = jobs
        self._wake = wake
        self._limit_seconds = 0.0
        self._asked_at = 0.0
        self._request: Request | None = None
        self._apart = False
        self._works: list[Work] = []

    @property
    def outdated(self) -> bool:
        """Whether new batches need another pipeline."""
        return self.for_repeat or self.pipeline.outdated

    @property
    def asking(self) -> bool:
        """Whether the task waits for a slot, or its batch is about to begin in one."""
        return self._request is not None

    @property
    def quiet(self) -> bool:
        """Whether no other thread works for this claim."""
        return not self.asking and not self.task.writing

    def ask(self, events: int, *, apart: bool, failing: bool, limit_seconds: float) -> None:
        self._asked_at = time.monotonic()
        self._limit_seconds = limit_seconds
        self._apart = apart or self.slow or self.assignment.flow in self._jobs.suspects
        self._request = Request(
            self.assignment.flow,
            self,
            events,
            self.pipeline.shareable and limit_seconds >= self._jobs.shared_limit_seconds,
            self._apart,
            failing,
            self.pipeline.spec.batch_seconds,
        )
        self._jobs.ask(self._request)

    def withdraw(self) -> None:
        """Prevent further batches. Thread-safe."""
        self.withdrawn = True
        request = self._request
        if request is not None and self._jobs.withdraw(request):
            self._request = None

    def cancel(self) -> None:
        """End running writes soon, except in jobs that other tasks share."""
        for work in list(self._works):
            self._jobs.cancel(work)

    def begin(self, most_events: int | None) -> Work | None:
        began = time.monotonic()
        waited = began - self._asked_at
        try:
            batch = None if self.withdrawn else self.task.start(most_events)
        except Exception as error:
            self.error = error
            batch = None
        self.slow = time.monotonic() - began >= self._jobs.start_seconds
        if batch is not None:
            batch.waited_seconds = waited
        work = self._work(batch) if batch else None
        self._request = None
        self._wake()
        return work

    def _work(self, batch: Batch) -> Work:
        work = Work(
            self.pipeline,
            batch.ranges,
            batch.addresses,
            batch.staging,
            self._limit_seconds,
            partial(self._on_done, batch),
            batch.identity,
            batch.splits,
            batch.gaps,
            self._apart or self.slow,
            batch.scale,
        )
        self._works = [*self._works[1 - REMOTE_BATCHES_AT_ONCE :], work]
        return work

    def _on_done(self, batch: Batch, outcome: Outcome) -> None:
        self.task.settle(batch, outcome)
        self._wake()
