"""A collector's tasks: one runner for each task assigned by the node. Each ``configure`` message
lists all tasks: tasks not in it are stopped, and unchanged ones are not disturbed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Pipeline
from flumeng.agent.collector.commit import OpenStore
from flumeng.agent.collector.job import Engine, Jobs
from flumeng.agent.collector.measures import Measures
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.status import STARTING, Reports, Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.agent.node.protocol import Message, Parent
from flumeng.agent.node.running_jobs import RunningJobs
from flumeng.connectors.api.ranged import OpenPositions
from flumeng.control.zookeeper import Store
from flumeng.platform import fail_fast, file_store

log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
LOOK_SECONDS = 1.0
HUNG_SECONDS = 60.0
"""A loop hangs when it takes this long to apply a configuration or to check time limits."""


class Worker:
    """Runs the tasks. ``engine`` runs ``slots`` jobs at once, besides those that may not share.
    ``positions`` reports the ends of partitions, ``on_stuck`` is called when the engine cannot go
    on. ``spark_ui``: URL of Spark's interface; ``address``: HOST:PORT of this process's counts."""

    def __init__(
        self,
        parent: Parent,
        store: Store,
        *,
        engine: Engine,
        slots: int,
        build: Callable[[Assignment], Pipeline],
        positions: OpenPositions,
        on_stuck: Callable[[str], None],
        open_store: OpenStore = file_store.open_store,
        running_jobs: RunningJobs | None = None,
        measures: Measures | None = None,
        spark_ui: str = "",
        address: str = "",
    ) -> None:
        self._parent = parent
        self._spark_ui = spark_ui
        self._address = address
        self._reports = Reports(parent.send)
        self._scheduler = Scheduler()
        self._jobs = Jobs(
            engine,
            slots,
            on_stuck=on_stuck,
            running_jobs=None if running_jobs is None else running_jobs.job,
        )
        publisher = Publisher(store)
        self._measures = measures or Measures()
        self._measures.jobs = lambda: self._jobs.load
        self._measures.acks = lambda: publisher.written
        self._around = Surroundings(
            store,
            publisher,
            self._scheduler,
            self._jobs,
            build,
            positions,
            self._reports.tell,
            open_store=open_store,
            measures=self._measures,
        )
        self._configuring_since: float | None = None
        self._looking_since: float | None = None
        self._runners: dict[str, Runner] = {}
        self._ending: list[Runner] = []
        store.on_session(lambda _connected: self._scheduler.wake_all())

    def run(self) -> None:
        details = {"spark_ui": self._spark_ui, "address": self._address}
        shown = {name: text for name, text in details.items() if text}
        self._parent.send({"type": "ready", **shown})
        fail_fast.start("watch", self._watch)
        for message in self._parent.messages():
            if message["type"] == "configure":
                self._configuring_since = time.monotonic()
                self._jobs.suspects = frozenset(message.get("suspects", ()))
                assignments = {task.key: task for task in map(_assignment, message["tasks"])}
                self._configure(message["number"], assignments)
                self._configuring_since = None
            elif message["type"] == "stop":
                self._drain(message["drain_seconds"])
                return
        log.info("the node's process has ended, so this collector ends")

    def require_turning(self, hung_seconds: float = HUNG_SECONDS) -> None:
        """Raise TimeoutError when a loop of the collector hangs. A liveness probe; thread-safe."""
        loops = {"configure": self._configuring_since, "watch": self._looking_since}
        for loop, since in loops.items():
            if since is not None and time.monotonic() - since > hung_seconds:
                raise TimeoutError(f"the collector loop {loop!r} has hung for {hung_seconds:g} s")

    def _configure(self, number: int, assignments: Mapping[str, Assignment]) -> None:
        for key in self._runners.keys() - assignments.keys():
            runner = self._runners.pop(key)
            runner.stop()
            self._ending.append(runner)
        self._ending = [runner for runner in self._ending if not runner.join(0)]
        self._measures.keep(assignments.keys())
        fresh = assignments.keys() - self._runners.keys()
        for key, assignment in assignments.items():
            if key in fresh:
                self._runners[key] = Runner(assignment, self._around)
            else:
                self._runners[key].assign(assignment)
        new = {key: assignments[key] for key in fresh}
        starting = {key: Status(task.epoch, task.revision, STARTING) for key, task in new.items()}
        self._reports.answer(number, self._runners.keys(), starting)
        for key in fresh:
            self._runners[key].start()

    def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for runner in self._runners.values():
            runner.drain()
        runners = [*self._runners.values(), *self._ending]
        late = [runner for runner in runners if not runner.join(deadline - time.monotonic())]
        for runner in late:
            runner.cancel()
        deadline = time.monotonic() + CANCEL_SECONDS
        for runner in late:
            runner.join(deadline - time.monotonic())
        log.info(
            "stopped: %d of %d tasks finished their batches", len(runners) - len(late), len(runners)
        )

    def _watch(self) -> None:
        while True:
            self._looking_since = None
            time.sleep(LOOK_SECONDS)
            self._looking_since = time.monotonic()
            self._scheduler.check_limits()
            self._jobs.check_limits()


def _assignment(task: Message) -> Assignment:
    return Assignment.of(
        task,
        partitions=tuple(task["partitions"]),
        draining=task["state"] == "draining",
        handoff=task.get("handoff", 0),
        standby=task["state"] == "standby",
    )
