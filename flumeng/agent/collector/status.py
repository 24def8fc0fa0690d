"""What a task says of itself: each change once, to its node and into the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from flumeng.agent.collector.assignment import Assignment
from flumeng.platform.scrubbing import scrub

log = logging.getLogger(__name__)

ERROR_CHARACTERS = 1000
"""All errors of a node's tasks lie in one znode."""
STARTING, RUNNING, FAILED, STOPPED = "starting", "running", "failed", "stopped"
RETRYING = "retrying"
STANDBY = "standby"


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
