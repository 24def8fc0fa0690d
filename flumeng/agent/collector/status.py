"""Reports tasks' statuses to the node, of rapid changes the last; logs each trouble once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.node.protocol import Message
from flumeng.platform import fail_fast
from flumeng.platform.scrubbing import scrub

ERROR_CHARACTERS = 1000
"""Longest error in a status, since all errors of a node's tasks share one znode."""
STARTING, RUNNING, FAILED, STOPPED = "starting", "running", "failed", "stopped"
RETRYING = "retrying"
STANDBY = "standby"
GAP_SECONDS = 0.1


@dataclass(frozen=True)
class Status:
    """``error``: why the task failed, stopped or retries, or its trouble while running or standing
    by. ``epoch_seen``: the higher epoch that superseded the task, or 0."""

    epoch: int
    revision: int
    state: str
    error: str | None = None
    partitions: tuple[str, ...] = ()
    epoch_seen: int = 0
    health: str = ""


Report = Callable[[str, Status], None]
"""Called from any thread with a task's key, at each change of its status."""


class StatusReport:
    def __init__(self, report: Report) -> None:
        self.reported: Status | None = None
        self._report = report
        self._saying = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        with self._saying:
            self._stopped = True

    def say(
        self,
        assignment: Assignment,
        state: str,
        error: str | None = None,
        *,
        epoch_seen: int = 0,
        health: str = "",
    ) -> None:
        partitions = assignment.partitions if state in (RUNNING, RETRYING) else ()
        epoch, revision = assignment.epoch, assignment.revision
        status = Status(epoch, revision, state, _cut(error), partitions, epoch_seen, health)
        with self._saying:
            if status != self.reported and not self._stopped:
                self.reported = status
                self._report(assignment.key, status)


def _cut(error: str | None) -> str | None:
    error = error and scrub(error)
    if error is None or len(error) <= ERROR_CHARACTERS:
        return error
    return error[: ERROR_CHARACTERS - 3] + "..."


class Reports:
    """Sends the statuses of all tasks to the node, from its own thread. Thread-safe."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._news = threading.Condition()
        self._changed = False
        self._answers: int | None = None
        self._statuses: dict[str, Status] = {}
        fail_fast.start("reports", self._run)

    def tell(self, key: str, status: Status) -> None:
        with self._news:
            self._statuses[key] = status
            self._change()

    def answer(self, number: int, keys: Collection[str], starting: Mapping[str, Status]) -> None:
        """Report configuration ``number`` as applied: tasks ``keys``, new ones as ``starting``."""
        with self._news:
            self._answers = number
            kept = {key: status for key, status in self._statuses.items() if key in keys}
            self._statuses = {**kept, **starting}
            self._change()

    def _change(self) -> None:
        self._changed = True
        self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._changed:
                    self._news.wait()
                self._changed = False
                tasks = {key: asdict(status) for key, status in self._statuses.items()}
                message = {"type": "status", "answers": self._answers, "tasks": tasks}
            self._send(message)
            time.sleep(GAP_SECONDS)
