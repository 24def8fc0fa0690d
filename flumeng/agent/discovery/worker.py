"""The loop of a discovery process: runs the assigned flows, one discovery at a time for each. Flows
whose last discovery failed have their own threads, so that unresponsive servers delay no other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from flumeng.agent.discovery.scaler import Scaler
from flumeng.agent.discovery.task import SOON_SECONDS, DiscoveryTask, Outcome, SupersededError
from flumeng.agent.node.protocol import ALIVE_SECONDS, Assignment, Message, Parent
from flumeng.config import SpecError, TaskRange, check_flow
from flumeng.config.flow import FlowSpec
from flumeng.connectors.api.finding import Finder, FindingTask
from flumeng.control.zookeeper import Store
from flumeng.platform import fail_fast
from flumeng.platform.errors import ConflictError, FlumengError, UnavailableError, UserError
from flumeng.platform.health_threshold import HealthThreshold
from flumeng.platform.metrics.health import Health

log = logging.getLogger(__name__)

THREADS = 4
FAILING_THREADS = 2
BACKOFF_SECONDS = 0.5
BACKOFF_MOST_SECONDS = 30.0
STUCK_SECONDS = 120.0
"""A discovery that takes longer hangs: each of its calls has a far lower limit."""
NEVER = float("inf")

MakeFinders = Callable[[FlowSpec, FindingTask], Sequence[Finder]]


@dataclass(frozen=True)
class Status:
    """A task's status as sent to the node, see ``TaskStatus``."""

    epoch: int
    revision: int
    state: str
    error: str | None = None
    epoch_seen: int = 0
    health: str = ""


@dataclass
class _Run:
    """A flow to discover. ``due``: time of the next discovery; ``began``: of the current one."""

    assignment: Assignment
    status: Status
    due: float = 0.0
    began: float | None = None
    backoff_seconds: float = 0.0
    every_seconds: float = 30.0
    task: DiscoveryTask | None = None
    scaler: Scaler | None = None
    streak: HealthThreshold = field(default_factory=HealthThreshold)
    ended: bool = False


class Worker:
    """Runs ``parent``'s flows. ``finders`` raises UserError. ``clock``: monotonic seconds."""

    def __init__(
        self,
        parent: Parent,
        store: Store,
        finders: MakeFinders,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.health = Health(STUCK_SECONDS, clock)
        self._parent = parent
        self._store = store
        self._finders = finders
        self._clock = clock
        self._news = threading.Condition()
        self._runs: dict[str, _Run] = {}
        self._answers: int | None = None
        self._reported: Message | None = None
        store.on_session(lambda connected: self._wake() if connected else None)

    @property
    def tasks(self) -> Mapping[str, DiscoveryTask]:
        with self._news:
            return {run.assignment.flow: run.task for run in self._runs.values() if run.task}

    @property
    def scalers(self) -> Mapping[str, Scaler]:
        with self._news:
            return {run.assignment.flow: run.scaler for run in self._runs.values() if run.scaler}

    def run(self, address: str = "") -> None:
        """Run until the parent stops this process or dies. ``address``: of its own server."""
        shown = {"address": address} if address else {}
        self._parent.send({"type": "ready", **shown})
        for failing in (*[False] * THREADS, *[True] * FAILING_THREADS):
            fail_fast.start("look", lambda failing=failing: self._work(failing=failing))  # type: ignore[misc]
        fail_fast.start("alive", self._stay_alive)
        for message in self._parent.messages():
            if message["type"] == "configure":
                self.configure(message)
            elif message["type"] == "stop":
                return
        log.info("the node's process has ended, so this discovery process ends")

    def configure(self, message: Message) -> None:
        tasks = (task for task in message["tasks"] if task["state"] != "draining")
        assignments = {assignment.key: assignment for assignment in map(Assignment.of, tasks)}
        with self._news:
            for key in self._runs.keys() - assignments.keys():
                self._let_go(self._runs.pop(key))
            for key, assignment in assignments.items():
                run = self._runs.get(key)
                if run is not None and run.assignment == assignment:
                    continue
                if run is not None:
                    self._let_go(run)
                starting = Status(assignment.epoch, assignment.revision, "starting")
                self._runs[key] = _Run(assignment, starting)
            self._answers = message["number"]
            self._report()
            self._news.notify_all()

    def _let_go(self, run: _Run) -> None:
        """End a run. A discovery in progress ends by itself, and its outcome is ignored."""
        run.ended = True
        if run.task is not None and run.began is None:
            run.task.close()

    def _wake(self) -> None:
        with self._news:
            for run in self._runs.values():
                if run.backoff_seconds:
                    run.due = 0.0
            self._news.notify_all()

    def _work(self, *, failing: bool) -> None:
        while True:
            with self._news:
                while (run := self._next(failing=failing)) is None:
                    self._news.wait(self._rest(failing=failing))
                run.began = self._clock()
            self.turn(run)

    def _next(self, *, failing: bool) -> _Run | None:
        waiting = (run for run in self._of(failing=failing) if run.began is None)
        soonest = min(waiting, key=lambda run: run.due, default=None)
        return soonest if soonest is not None and soonest.due <= self._clock() else None

    def _rest(self, *, failing: bool) -> float:
        dues = (run.due for run in self._of(failing=failing) if run.began is None)
        return max(0.0, min([*dues, self._clock() + BACKOFF_MOST_SECONDS]) - self._clock())

    def _of(self, *, failing: bool) -> list[_Run]:
        return [run for run in self._runs.values() if bool(run.backoff_seconds) == failing]

    def turn(self, run: _Run) -> None:
        state, error, seen, rest = "running", None, 0, run.every_seconds
        try:
            outcome = self._task(run).discover()
            error = outcome.trouble or None
            rest = _rest_after(outcome, run.every_seconds)
            backoff = 0.0
            run.streak.succeed()
        except SupersededError as superseded:
            state, error, seen = "stopped", str(superseded), superseded.seen
            rest, backoff = NEVER, 0.0
        except (FlumengError, SpecError) as problem:
            backoff = min(BACKOFF_MOST_SECONDS, run.backoff_seconds * 2 or BACKOFF_SECONDS)
            state, error, rest = "failed", str(problem), backoff
            lost = isinstance(problem, ConflictError) or not self._store.connected
            if lost:  # no news of the sources
                state, error = run.status.state, run.status.error
            else:
                run.streak.fail(unreachable=isinstance(problem, UnavailableError))
                if isinstance(problem, UserError) and run.task is not None:
                    run.task.close()
                    run.task = None  # the next discovery resolves its secrets again
        except Exception as fault:  # other flows must go on
            log.exception("task %s: internal error", run.assignment.key)
            run.streak.fail()
            state, error = "failed", f"internal error: {fault!r}"
            rest = backoff = BACKOFF_MOST_SECONDS
        with self._news:
            run.began = None
            run.backoff_seconds = backoff
            run.due = self._clock() + rest
            if run.ended:
                if run.task is not None:
                    run.task.close()
                return
            before = run.status
            own = (run.assignment.epoch, run.assignment.revision)
            run.status = Status(*own, state, error, seen, run.streak.health)
            if run.status != before:
                if error and error != before.error:
                    log.warning("task %s is %s: %s", run.assignment.key, state, error)
                elif before.error and not error:
                    log.info("task %s works again", run.assignment.key)
                self._report()
            self._news.notify_all()

    def _task(self, run: _Run) -> DiscoveryTask:
        """Return the run's task; create it at the first discovery, and again after a UserError."""
        if run.task is None:
            spec = check_flow(run.assignment.spec)
            listed = (part.options for part in spec.partitioned if part not in spec.pollers)
            every = [options.discovery_seconds for options in listed]
            run.every_seconds = min(every, default=run.every_seconds)
            own = (run.assignment.flow, run.assignment.epoch)
            finders = self._finders(spec, FindingTask(*own))
            tasks = spec.place.collect.tasks
            if isinstance(tasks, TaskRange):
                run.scaler = Scaler(self._store, *own, tasks, spec.batch_seconds)
            run.task = DiscoveryTask(self._store, *own, finders)
        return run.task

    def _report(self) -> None:
        tasks = {key: asdict(run.status) for key, run in self._runs.items()}
        message = {"type": "status", "answers": self._answers, "tasks": tasks}
        if message != self._reported:
            self._reported = message
            self._parent.send(message)

    def _stay_alive(self) -> None:
        while True:
            with self._news:
                began = [run.began for run in self._runs.values() if run.began is not None]
            if all(self._clock() - start < STUCK_SECONDS for start in began):
                self.health.turned()
                self._parent.send({"type": "alive", "held": ""})
            time.sleep(ALIVE_SECONDS)


def _rest_after(outcome: Outcome, every_seconds: float) -> float:
    if outcome.more:
        return 0.0
    soon = SOON_SECONDS if outcome.soon else every_seconds
    due = every_seconds if outcome.due_seconds is None else outcome.due_seconds
    return min(every_seconds, soon, due)
