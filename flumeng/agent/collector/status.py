"""What tasks say of themselves: each change once, to the node and into the log.

A report to the node carries all tasks, so changes that come soon after one another share one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.node.protocol import Message
from flumeng.platform import vital
from flumeng.platform.scrubbing import scrub

log = logging.getLogger(__name__)

ERROR_CHARACTERS = 1000
"""All errors of a node's tasks lie in one znode."""
STARTING, RUNNING, FAILED, STOPPED = "starting", "running", "failed", "stopped"
RETRYING = "retrying"
STANDBY = "standby"
GAP_SECONDS = 0.1


@dataclass(frozen=True)
class Status:
    """What a task says of itself; ``partitions`` are those that it has claimed.

    While it retries, ``error`` is why the last batch was not written; while it runs, why partitions
    stand still.
    ``epoch_seen`` is the higher epoch under which an ack is owned, when the task is superseded.
    """

    epoch: int
    revision: int
    state: str
    error: str | None = None
    partitions: tuple[str, ...] = ()
    epoch_seen: int = 0
    health: str = ""


Report = Callable[[str, Status], None]
"""Is told the key of a task and each change of its status, from any thread."""


class StatusReport:
    """Used from any thread. ``said`` is the last status that was told."""

    def __init__(self, report: Report) -> None:
        self.said: Status | None = None
        self._report = report
        self._saying = threading.Lock()
        self._stopped = False
        self._trouble = ""

    def stop(self) -> None:
        """Nothing is told after this call."""
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
        """Tell it, unless it was told last."""
        partitions = assignment.partitions if state in (RUNNING, RETRYING) else ()
        epoch, revision = assignment.epoch, assignment.revision
        status = Status(epoch, revision, state, _cut(error), partitions, epoch_seen, health)
        with self._saying:
            if status != self.said and not self._stopped:
                self.said = status
                self._report(assignment.key, status)

    def log_trouble(self, level: int, sentence: str, trace: Exception | None = None) -> None:
        """Once, until something else goes wrong or all is well again."""
        if sentence != self._trouble:
            log.log(level, "%s", sentence, exc_info=trace)
        self._trouble = sentence

    def all_is_well(self) -> None:
        """The next trouble is logged, whatever it is."""
        self._trouble = ""


def _cut(error: str | None) -> str | None:
    """Without secrets, and of bounded length."""
    error = error and scrub(error)
    if error is None or len(error) <= ERROR_CHARACTERS:
        return error
    return error[: ERROR_CHARACTERS - 3] + "..."


class Listener(Protocol):
    """The node; see ``Parent``."""

    def send(self, message: Message) -> None: ...


class Reports:
    """Used from any thread; sends from one of its own."""

    def __init__(self, parent: Listener) -> None:
        self._parent = parent
        self._news = threading.Condition()
        self._changed = False
        self._answers: int | None = None
        self._statuses: dict[str, Status] = {}
        vital.start("reports", self._send)

    def tell(self, key: str, status: Status) -> None:
        """The task's status is another one."""
        with self._news:
            self._statuses[key] = status
            self._change()

    def answer(self, number: int, keys: Collection[str], starting: Mapping[str, Status]) -> None:
        """Configuration ``number`` is the one that runs, with the tasks ``keys``."""
        with self._news:
            self._answers = number
            kept = {key: told for key, told in self._statuses.items() if key in keys}
            self._statuses = {**kept, **starting}
            self._change()

    def _change(self) -> None:
        self._changed = True
        self._news.notify()

    def _send(self) -> None:
        while True:
            with self._news:
                while not self._changed:
                    self._news.wait()
                self._changed = False
                tasks = {key: asdict(status) for key, status in self._statuses.items()}
                message = {"type": "status", "answers": self._answers, "tasks": tasks}
            self._parent.send(message)
            time.sleep(GAP_SECONDS)
