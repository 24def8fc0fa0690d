"""One task's thread: takes the task, runs its batches, and takes it again after a failure.

An owner with a higher epoch ends the work on an assignment; anything else is tried again. Being
fenced is not proof of such an owner: it may be a process of this node that is ending, and so the
next claim tells. A new assignment, a drain and a stop are looked at between batches. While it is
not certain that the session lives, nothing begins: the task pauses and goes on, and has not failed.
Nor has it when a journal cannot be read: the others go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flumeng.collector.acks import SupersededError
from flumeng.collector.fetch import UnreadableError
from flumeng.collector.journals import Journals, Reachable
from flumeng.collector.pipeline import Pipeline
from flumeng.collector.publisher import Publisher
from flumeng.collector.ranges import BatchSize
from flumeng.collector.task import POLL_SECONDS, Assignment, Task
from flumeng.errors import ConflictError, FlumengError, UnavailableError
from flumeng.sinks import BatchTooWideError
from flumeng.store import Store

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
RETRY_MOST_SECONDS = 30.0
PAUSE = "ZooKeeper has not answered for two thirds of the session's timeout, or is not there"
STARTING, RUNNING, FAILED, STOPPED = "starting", "running", "failed", "stopped"


@dataclass(frozen=True)
class Status:
    """What a task says of itself; ``partitions`` are those that it has claimed.

    While it runs, ``error`` tells of journals that stand still.
    """

    epoch: int
    revision: int
    state: str
    error: str | None = None
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """What a task needs of its process.

    ``build`` makes the pipeline of an assignment, UserError when it cannot. ``report`` is told each
    change of a task's status, from the task's thread.
    """

    store: Store
    publisher: Publisher
    build: Callable[[Assignment], Pipeline]
    positions: Callable[[], Reachable]
    report: Callable[[str, Status], None]


class Runner:
    """Its methods may be called from any thread. Reports nothing once it was told to stop."""

    def __init__(self, assignment: Assignment, around: Surroundings) -> None:
        self._around = around
        self._wanted = assignment
        self._news = threading.Condition()
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._journals = Journals(around.positions())
        self._pipeline: Pipeline | None = None
        self._size: BatchSize | None = None
        self._said: Status | None = None
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name=assignment.key, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def assign(self, assignment: Assignment) -> None:
        """An assignment equal to the present one changes nothing."""
        self._tell(lambda: setattr(self, "_wanted", assignment))

    def drain(self) -> None:
        """Go on until everything safe is acked, then end."""
        self._tell(self._draining.set)

    def stop(self) -> None:
        """End when the running batches are committed."""
        self._tell(self._stopping.set)

    def cancel(self) -> None:
        """End soon. What was not committed was never decided: the next owner does it again."""
        self.stop()
        if self._pipeline is not None:
            self._pipeline.cancel()

    def join(self, seconds: float) -> bool:
        """Whether the task has ended within that time."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _tell(self, change: Callable[[], None]) -> None:
        with self._news:
            change()
            self._news.notify_all()

    def _run(self) -> None:
        retry_seconds = RETRY_SECONDS
        while not self._stopping.is_set():
            assignment = self._wanted
            if not self._around.store.connected:
                self._sleep(assignment, POLL_SECONDS)
                continue
            began = time.monotonic()
            try:
                self._work(assignment)
            except BatchTooWideError as error:
                assert self._size is not None
                self._size.too_wide()
                log.info("%s: %d events at most: %s", assignment.key, self._size.events, error)
            except UnreadableError as error:
                self._journals.stop(error)
            except (UnavailableError, ConflictError) as error:
                self._log_trouble(logging.WARNING, f"{assignment.key} waits: {error}")
                if self._size is not None:
                    self._size.failed()
                self._sleep(assignment, RETRY_SECONDS)
            except Exception as error:
                if self._stopping.is_set():
                    return
                self._fail(assignment, error)
                if time.monotonic() - began > RETRY_MOST_SECONDS:
                    retry_seconds = RETRY_SECONDS
                self._sleep(assignment, retry_seconds)
                retry_seconds = min(2 * retry_seconds, RETRY_MOST_SECONDS)
            else:
                if not self._draining.is_set():
                    self._sleep(assignment, None)
                if self._draining.is_set():
                    return

    def _work(self, assignment: Assignment) -> None:
        """Own the task until it is wanted otherwise, someone else owns it, or it is drained."""
        if assignment.draining:
            self._say(assignment, STOPPED)
            return
        try:
            self._run_batches(assignment)
        except SupersededError as error:
            log.warning("%s: superseded: %s", assignment.key, error)
            self._say(assignment, STOPPED, "superseded")

    def _run_batches(self, assignment: Assignment) -> None:
        around = self._around
        pipeline = self._pipeline = around.build(assignment)
        size = self._batch_size(pipeline.spec.batch.events)
        journals = self._journals
        task = Task(assignment, around.store, around.publisher, pipeline, journals, size=size)
        log.info("%s: owned under epoch %d", assignment.key, assignment.epoch)
        proven = self._said is None or self._said.state != FAILED
        refreshed = False
        try:
            while self._wanted == assignment and not self._stopping.is_set():
                if proven:
                    self._say(assignment, RUNNING, journals.trouble, assignment.partitions)
                draining = self._draining.is_set()
                if draining and not refreshed:
                    refreshed = True
                    journals.refresh(assignment.partitions)
                busy = task.turn(eager=draining)
                if not around.store.connected:
                    self._log_trouble(logging.WARNING, f"{assignment.key} pauses: {PAUSE}")
                elif task.proven:
                    proven, self._trouble = True, ""
                if draining and task.caught_up:
                    break
                if not busy:
                    self._sleep(assignment, POLL_SECONDS)
            while task.running:
                if not task.commit_next():
                    time.sleep(POLL_SECONDS)
        except BaseException:
            task.abandon()
            raise
        finally:
            task.close()

    def _fail(self, assignment: Assignment, error: Exception) -> None:
        if self._size is not None:
            self._size.failed()
        trace = None if isinstance(error, FlumengError | OSError) else error
        self._log_trouble(logging.ERROR, f"{assignment.key} failed: {error}", trace)
        self._say(assignment, FAILED, str(error) or type(error).__name__)

    def _log_trouble(self, level: int, sentence: str, trace: Exception | None = None) -> None:
        """Once, until something else goes wrong or all is well again."""
        if sentence != self._trouble:
            log.log(level, "%s", sentence, exc_info=trace)
        self._trouble = sentence

    def _batch_size(self, cap: int) -> BatchSize:
        if self._size is None or self._size.cap != cap:
            self._size = BatchSize(cap)
        return self._size

    def _say(
        self,
        assignment: Assignment,
        state: str,
        error: str | None = None,
        partitions: tuple[str, ...] = (),
    ) -> None:
        status = Status(assignment.epoch, assignment.revision, state, error, partitions)
        if status != self._said and not self._stopping.is_set():
            self._said = status
            self._around.report(assignment.key, status)

    def _sleep(self, assignment: Assignment, seconds: float | None) -> None:
        """Until something else is wanted, or for that long."""
        before = self._draining.is_set()
        with self._news:
            self._news.wait_for(
                lambda: (
                    self._stopping.is_set()
                    or (self._wanted, self._draining.is_set()) != (assignment, before)
                ),
                seconds,
            )
