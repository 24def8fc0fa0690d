"""What a collector does: what the node wants, as one runner a task.

Messages are level-triggered: each ``configure`` names all tasks, so those that it does not name are
stopped, and those that are as before notice nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from flumeng.collector.journals import Reachable
from flumeng.collector.pipeline import Pipeline
from flumeng.collector.publisher import Publisher
from flumeng.collector.runner import STARTING, Runner, Status, Surroundings
from flumeng.collector.task import Assignment
from flumeng.node.protocol import Message, Parent
from flumeng.store import Store

log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0


class Worker:
    """Talks to ``parent``; everything but the status reports happens in its thread.

    ``build`` makes the pipeline of an assignment, and ``positions`` what a task asks for its
    journals' ends.
    """

    def __init__(
        self,
        parent: Parent,
        store: Store,
        build: Callable[[Assignment], Pipeline],
        positions: Callable[[], Reachable],
    ) -> None:
        self._parent = parent
        self._around = Surroundings(store, Publisher(store), build, positions, self._on_status)
        self._answers: int | None = None
        self._runners: dict[str, Runner] = {}
        self._ending: list[Runner] = []
        self._statuses: dict[str, Status] = {}
        self._reporting = threading.Lock()

    def run(self) -> None:
        """Until the parent says stop or is gone."""
        self._parent.send({"type": "ready"})
        for message in self._parent.messages():
            if message["type"] == "configure":
                wanted = {task.key: task for task in map(_assignment, message["tasks"])}
                self._configure(message["number"], wanted)
            elif message["type"] == "stop":
                self._drain(message["drain_seconds"])
                return
        log.info("the node is gone")

    def _configure(self, number: int, wanted: Mapping[str, Assignment]) -> None:
        for key in self._runners.keys() - wanted.keys():
            runner = self._runners.pop(key)
            runner.stop()
            self._ending.append(runner)
        self._ending = [runner for runner in self._ending if not runner.join(0)]
        fresh = wanted.keys() - self._runners.keys()
        for key, assignment in wanted.items():
            if key in fresh:
                self._runners[key] = Runner(assignment, self._around)
            else:
                self._runners[key].assign(assignment)
        self._answer(number, [wanted[key] for key in fresh])
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
        log.info("stopped, %d of %d tasks drained", len(runners) - len(late), len(runners))

    def _on_status(self, key: str, status: Status) -> None:
        with self._reporting:
            self._statuses[key] = status
            self._report()

    def _answer(self, number: int, fresh: Iterable[Assignment]) -> None:
        """Say that this configuration is the one that runs; what is new in it is about to."""
        with self._reporting:
            self._answers = number
            for key in self._statuses.keys() - self._runners.keys():
                del self._statuses[key]
            for task in fresh:
                self._statuses[task.key] = Status(task.epoch, task.revision, STARTING)
            self._report()

    def _report(self) -> None:
        tasks = {key: asdict(status) for key, status in self._statuses.items()}
        self._parent.send({"type": "status", "answers": self._answers, "tasks": tasks})


def _assignment(task: Message) -> Assignment:
    return Assignment(
        flow=task["flow"],
        task=task["task"],
        epoch=task["epoch"],
        revision=task["revision"],
        spec=task["spec"],
        partitions=tuple(task["partitions"]),
        draining=task["state"] == "draining",
    )
