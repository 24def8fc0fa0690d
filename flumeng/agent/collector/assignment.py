"""The assignment of a task to this node, and the pauses before a failed task is retried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flumeng.agent.node import protocol
from flumeng.platform.backoff import Backoff

FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0


@dataclass(frozen=True)
class Assignment(protocol.Assignment):
    """A task assigned to this node. ``draining``: release it after the running batches.
    ``standby``: another node owns it; stay ready. A new ``handoff`` number requests immediate
    delivery of the backlog. ``filters``: those of another site with which a batch is repeated."""

    partitions: tuple[str, ...]
    draining: bool = False
    handoff: int = field(default=0, compare=False)
    standby: bool = False
    filters: str = ""


class Retries:
    """Backoff of a task, growing while it fails soon after claims. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rest: tuple[Assignment, bool] | None = None
        """The failed assignment, and whether a drain had begun: the pair waits for ``_until``."""
        self._until = 0.0
        self._backoff = Backoff(FIRST_SECONDS, MOST_SECONDS)
        self._began = 0.0

    def begin(self) -> None:
        self._began = self._clock()
        self._rest = None

    def failed(self, assignment: Assignment, *, draining: bool) -> None:
        if self._clock() - self._began > MOST_SECONDS:
            self._backoff.reset()
        self._rest, self._until = (assignment, draining), self._clock() + self._backoff.next()

    def wait(self, assignment: Assignment, *, draining: bool) -> None:
        """Pause briefly, when a service is unavailable or a write conflicts: no backoff grows."""
        self._rest, self._until = (assignment, draining), self._clock() + FIRST_SECONDS

    def left_seconds(self, assignment: Assignment, *, draining: bool) -> float:
        rests = self._rest == (assignment, draining)
        return self._until - self._clock() if rests else 0.0
