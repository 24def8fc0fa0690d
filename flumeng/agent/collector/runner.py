"""Runs one task in turns: claims it, runs its batches, and claims it again after a failure.

Of all failures only a higher epoch ends the work on an assignment. A new assignment, a drain and a
stop take effect between batches. While the ZooKeeper session is uncertain the task pauses. After a
hang the task restarts in jobs of its own, with a longer limit, until it commits a batch. While its
sinks are unavailable, it shares jobs with other such tasks only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from flumeng.agent.collector.ack import SupersededError
from flumeng.agent.collector.assignment import Assignment, Retries
from flumeng.agent.collector.outcome import BrokenTogetherError, CutShortError, HungError
from flumeng.agent.collector.partitions import Partitions
from flumeng.agent.collector.slot_client import SlotClient
from flumeng.agent.collector.status import FAILED, RETRYING, RUNNING, STANDBY, STOPPED, StatusReport
from flumeng.agent.collector.takeover import Surroundings, Takeover
from flumeng.connectors.api.ranged import UnreadableError
from flumeng.connectors.api.sink import BatchTooWideError
from flumeng.platform.errors import ConflictError, UnavailableError
from flumeng.platform.health_threshold import HealthThreshold
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
FOLLOW_SECONDS = 10.0
"""Interval at which a standby reads the acks of its partitions."""
LEAVE_SECONDS = 60.0
HANG_MOST_SECONDS = 600.0
PAUSE = "ZooKeeper has not answered for two thirds of the session timeout, or is unreachable"


class Runner:
    """Runs one task. Public methods are thread-safe. ``clock``: monotonic seconds."""

    def __init__(
        self,
        assignment: Assignment,
        around: Surroundings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._around = around
        self._clock = clock
        self._assignment = assignment
        self._handoff = assignment.handoff
        self._handed_off = 0
        self._draining = False
        self._stopping = False
        self._ended = threading.Event()
        self._claim: SlotClient | None = None
        self._left: SlotClient | None = None
        """A failed claim of which threads may still run."""
        self._leave_by = 0.0
        self._settled: Assignment | None = None
        """The assignment that was released or superseded, and is ignored from then on."""
        self._refreshed = False
        """Whether a reread of the partitions' ends was requested after the drain began."""
        self._drained = False
        self._gathering = False
        """Whether a batch gathers events until a timer ends; meanwhile new events cause no turn."""
        self._proven = True
        """Whether the status may be RUNNING: after a failure a claim must make progress first."""
        self._streak = HealthThreshold()
        self._retries = Retries(clock)
        self._apart = self._failing = False
        self._hangs = 0
        self._status = StatusReport(around.report)
        self._trouble = TroubleLog(log)
        self._partitions = Partitions(around.positions(self._on_change))
        self._takeover = Takeover(around, self._partitions, self._wake)

    def start(self) -> None:
        self._around.scheduler.add(self)

    def assign(self, assignment: Assignment) -> None:
        """Replace the assignment. An equal one changes nothing, but may request a handoff."""
        if (assignment, assignment.handoff) != (self._assignment, self._handoff):
            self._assignment, self._handoff = assignment, assignment.handoff
            self._wake()

    def drain(self) -> None:
        """Run until everything safe is acked, then end."""
        self._draining = True
        self._wake()

    def stop(self) -> None:
        """End after the running batches are committed; report nothing from now on."""
        self._stopping = True
        self._status.stop()
        if (claim := self._claim) is not None:
            claim.withdraw()
        self._wake()

    def cancel(self) -> None:
        """End soon; drop uncommitted batches."""
        self.stop()
        if (claim := self._claim) is not None:
            claim.cancel()

    def join(self, seconds: float) -> bool:
        return self._ended.wait(max(0.0, seconds))

    def turn(self) -> float | None:
        if self._ended.is_set():
            return None
        assignment = self._assignment
        try:
            if self._left is not None:
                return self._leave(self._left)
            if self._claim is not None:
                return self._go_on(self._claim)
            return self._take(assignment)
        except Exception as error:
            return self._on_error(assignment, error)

    def on_hang(self, seconds: float) -> None:
        text = f"the task hangs: ZooKeeper, a lake or Spark has not answered for {seconds:.0f} s"
        self._trouble.log(logging.ERROR, "task %s: %s", self._assignment.key, text)
        self._say(self._assignment, FAILED, text)

    def _on_change(self) -> None:
        claim = self._claim
        if claim is not None and not (self._gathering or claim.asking) and claim.task.may_start:
            self._wake()

    def _wake(self) -> None:
        self._around.scheduler.wake(self)

    def _take(self, assignment: Assignment) -> float | None:
        idle = assignment.standby or self._settled == assignment
        if self._stopping or (self._draining and idle):
            self._end()
        if self._ended.is_set() or self._settled == assignment:
            return None
        left = self._retries.left_seconds(assignment, draining=self._draining)
        if left > 0:
            return left
        if not self._around.store.connected:
            return LOOK_SECONDS
        if assignment.draining:
            self._settle(assignment)
            return 0.0
        if assignment.standby:
            return self._stand_by(assignment)
        self._retries.begin()
        claim = self._takeover.claim(assignment)
        claim.handoff = self._handed_off
        self._claim, self._settled = claim, None
        reported = self._status.reported
        self._proven = reported is None or reported.state not in (FAILED, RETRYING)
        return 0.0

    def _stand_by(self, assignment: Assignment) -> float:
        self._around.measures.lags.forget(assignment.key)
        trouble = self._takeover.stand_by(assignment)
        self._settled = None
        self._say(assignment, STANDBY, trouble)
        return FOLLOW_SECONDS

    def _go_on(self, claim: SlotClient) -> float | None:
        task = claim.task
        over = claim.outdated and not task.repeating
        if self._assignment != claim.assignment or self._stopping or self._drained or over:
            claim.withdraw()
        letting_go = claim.withdrawn
        if letting_go and claim.quiet and not task.running:
            return self._let_go(claim)
        if not self._around.store.connected:
            text = "task %s pauses: %s"
            self._trouble.log(logging.WARNING, text, claim.assignment.key, PAUSE)
            return LOOK_SECONDS
        if claim.error is not None:
            raise claim.error
        try:
            tree = self._around.tree.identity()
        except UnavailableError:
            return LOOK_SECONDS
        if tree != claim.tree:
            raise ConflictError("ZooKeeper has another cluster now: the task starts again")
        if task.written:
            self._commit(claim)
            self._apart, self._failing, self._hangs = False, False, 0
            return 0.0
        if letting_go or claim.asking or not task.may_start:
            return None
        return self._poll(claim)

    def _commit(self, claim: SlotClient) -> None:
        began = time.perf_counter()
        batch = claim.task.commit()
        self._streak.succeed()
        seconds = time.perf_counter() - began
        made = claim.pipeline.filtered()
        self._around.measures.committed(claim.assignment.key, batch, made, seconds)

    def _poll(self, claim: SlotClient) -> float | None:
        task = claim.task
        draining = self._draining
        if draining and not self._refreshed:
            self._refreshed = True
            task.refresh()
        self._gathering = False
        if claim.handoff != self._handoff:
            claim.handoff = self._handoff
            task.hand_off()
        self._takeover.size.pace(self._partitions.rate())
        backlog = task.backlog(eager=draining)
        self._around.measures.lags.see(claim.assignment.key, task.places)
        if task.handed_off:
            self._handed_off = claim.handoff
        if task.proven:
            self._proven = True
            self._trouble.end("task %s works again", claim.assignment.key)
        if self._streak.health and task.caught_up:
            self._streak.succeed(all_is_done=True)
        if self._proven and not claim.outdated:
            self._say(
                claim.assignment,
                RUNNING,
                self._partitions.trouble or claim.pipeline.trouble or None,
            )
        if not task.repeating and self._partitions.rest():  # a decided batch is finished
            self._drained |= draining
            return 0.0 if draining else LOOK_SECONDS
        if backlog.due_seconds == 0.0:
            first = claim.pipeline.spec.batch.timeout_seconds
            limit = min(first * 2**self._hangs, max(first, HANG_MOST_SECONDS))
            apart, failing = self._apart, self._failing
            claim.ask(backlog.events, apart=apart, failing=failing, limit_seconds=limit)
            return None
        if draining and task.caught_up:
            self._drained = True
            return 0.0
        if backlog.due_seconds is not None:
            self._gathering = True
            return min(backlog.due_seconds, LOOK_SECONDS)
        return LOOK_SECONDS if self._partitions.trouble else None

    def _let_go(self, claim: SlotClient) -> float | None:
        claim.task.close()
        self._claim = None
        if self._stopping or self._drained:
            self._end()
        return 0.0

    def _leave(self, claim: SlotClient) -> float | None:
        left = self._leave_by - self._clock()
        if not claim.quiet and left > 0:
            return left
        claim.task.close()
        self._left = None
        if self._stopping:
            self._end()
        return 0.0

    def _on_error(self, assignment: Assignment, error: Exception) -> float | None:
        """Drop the claim and handle its error. The claim's assignment replaces that of the turn."""
        if self._claim is not None:
            assignment = self._claim.assignment
            self._claim.withdraw()
            self._claim.cancel()
            self._left, self._claim = self._claim, None
            self._leave_by = self._clock() + LEAVE_SECONDS
        if not self._stopping:
            self._around.measures.failed(assignment.flow, error)
            self._around.measures.lags.lose(assignment.key)
            self._judge(assignment, error)
        return 0.0

    def _judge(self, assignment: Assignment, error: Exception) -> None:
        if isinstance(error, SupersededError):
            log.warning("task %s ends here, a newer owner runs it: %s", assignment.key, error)
            self._settle(assignment, "superseded", epoch_seen=error.epoch)
        elif isinstance(error, BatchTooWideError):
            size = self._takeover.size
            size.too_wide()
            log.info("task %s: at most %d events a batch: %s", assignment.key, size.events, error)
        elif isinstance(error, UnreadableError):
            self._partitions.stop(error)
        elif isinstance(error, CutShortError):
            self._failing = True
        elif isinstance(error, BrokenTogetherError):
            self._apart = True
        elif isinstance(error, UnavailableError | ConflictError):
            text = "task %s waits, and tries again: %s"
            self._trouble.log(logging.WARNING, text, assignment.key, error)
            self._failing |= isinstance(error, UnavailableError)
            if isinstance(error, UnavailableError) and self._around.store.connected:
                self._streak.fail(unreachable=True)
                self._say(assignment, RETRYING, str(error))
            self._takeover.size.failed()
            self._retries.wait(assignment, draining=self._draining)
        else:
            self._fail(assignment, error)

    def _fail(self, assignment: Assignment, error: Exception) -> None:
        self._streak.fail()
        self._takeover.size.failed()
        if isinstance(error, HungError):
            self._apart = True
            self._hangs += 1
        self._retries.failed(assignment, draining=self._draining)
        text = "task %s failed: %s"
        self._trouble.log(logging.ERROR, text, assignment.key, error, cause=error)
        self._say(assignment, FAILED, str(error) or type(error).__name__)

    def _settle(
        self, assignment: Assignment, error: str | None = None, *, epoch_seen: int = 0
    ) -> None:
        self._settled = assignment
        self._around.measures.lags.forget(assignment.key)
        self._say(assignment, STOPPED, error, epoch_seen)

    def _end(self) -> None:
        self._partitions.close()
        self._around.measures.lags.forget(self._assignment.key)
        self._around.scheduler.remove(self)
        self._ended.set()

    def _say(
        self, assignment: Assignment, state: str, error: str | None = None, epoch_seen: int = 0
    ) -> None:
        health = self._streak.health
        self._status.say(assignment, state, error, epoch_seen=epoch_seen, health=health)
