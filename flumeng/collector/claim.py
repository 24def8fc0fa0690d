"""A claimed task on its way through the slots: it asks for one, begins its batch there, and hears
what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from flumeng.collector.jobs import Jobs
from flumeng.collector.slots import Request
from flumeng.collector.task import BATCHES_AT_ONCE, Assignment, Batch, Task
from flumeng.collector.work import Outcome, Pipeline, Work


class Claim:
    """``begin`` and what is told to a work come from threads of ``jobs``, all else from the task's
    turns; ``wake`` asks for such a turn. Nothing is looked at while the claim is ``asking``.
    """

    def __init__(
        self,
        assignment: Assignment,
        pipeline: Pipeline,
        task: Task,
        jobs: Jobs,
        wake: Callable[[], None],
    ) -> None:
        self.assignment = assignment
        self.task = task
        self.asking = False
        self.error: Exception | None = None
        """Why the last batch could not begin."""
        self._pipeline = pipeline
        self._jobs = jobs
        self._wake = wake
        self._limit_seconds = 0.0
        self._asked_at = 0.0
        self._works: list[Work] = []

    @property
    def quiet(self) -> bool:
        """Whether nothing of it runs in other threads."""
        return not self.asking and not self.task.writing

    def ask(self, events: int, *, apart: bool, limit_seconds: float) -> None:
        """Let a batch of about so many events begin as soon as there is a slot."""
        self.asking = True
        self._asked_at = time.monotonic()
        self._limit_seconds = limit_seconds
        request = Request(
            self.assignment.flow,
            self.assignment.key,
            events,
            self._pipeline.shareable,
            apart,
            self._pipeline.spec.batch_seconds,
        )
        self._jobs.ask(self, request)

    def withdraw(self) -> None:
        """Ask no more, when the batch has not begun."""
        if self.asking and self._jobs.withdraw(self.assignment.key):
            self.asking = False

    def cancel(self) -> None:
        """End soon what is being written, unless others would suffer."""
        for work in list(self._works):
            self._jobs.cancel(work)

    def begin(self) -> Work | None:
        waited = time.monotonic() - self._asked_at
        try:
            batch = self.task.start()
        except Exception as error:
            self.error = error
            batch = None
        if batch is not None:
            batch.waited_seconds = waited
        work = self._work(batch) if batch else None
        self.asking = False
        self._wake()
        return work

    def _work(self, batch: Batch) -> Work:
        work = Work(
            self._pipeline,
            batch.ranges,
            batch.addresses,
            batch.staging,
            self._limit_seconds,
            partial(self._on_done, batch),
        )
        self._works = [*self._works[1 - BATCHES_AT_ONCE :], work]
        return work

    def _on_done(self, batch: Batch, outcome: Outcome) -> None:
        self.task.settle(batch, outcome)
        self._wake()
