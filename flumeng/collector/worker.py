"""What a collector does: what the node wants, as one runner a task.

Messages are level-triggered: each ``configure`` names all tasks, so those that it does not name are
stopped, and those that are as before notice nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from flumeng.child import Message, Parent
from flumeng.collector.journals import Reachable
from flumeng.collector.pipeline import Pipeline
from flumeng.collector.publisher import Publisher
from flumeng.collector.runner import Runner, Status, Surroundings
from flumeng.collector.task import Assignment
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
        self._runners: dict[str, Runner] = {}
        self._ending: list[Runner] = []
        self._statuses: dict[str, Status] = {}
        self._reporting = threading.Lock()

    def run(self) -> None:
        """Until the parent says stop or is gone."""
        self._parent.send({"type": "ready"})
        for message in self._parent.messages():
            if message["type"] == "configure":
                self._configure({task.key: task for task in map(_assignment, message["tasks"])})
            elif message["type"] == "stop":
                self._drain(message["drain_seconds"])
                return
        log.info("the node is gone")

    def _configure(self, wanted: Mapping[str, Assignment]) -> None:
        for key in self._runners.keys() - wanted.keys():
            runner = self._runners.pop(key)
            runner.stop()
            self._ending.append(runner)
            self._forget(key)
        self._ending = [runner for runner in self._ending if not runner.join(0)]
        for key, assignment in wanted.items():
            if key in self._runners:
                self._runners[key].assign(assignment)
            else:
                self._runners[key] = Runner(assignment, self._around)
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

    def _forget(self, key: str) -> None:
        with self._reporting:
            if self._statuses.pop(key, None):
                self._report()

    def _report(self) -> None:
        tasks = {key: asdict(status) for key, status in self._statuses.items()}
        self._parent.send({"type": "status", "tasks": tasks})


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
