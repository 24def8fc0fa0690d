"""The assignment of a task to this node, and when it is tried again after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flumeng.platform.backoff import Backoff

FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0


@dataclass(frozen=True)
class Assignment:
    """``draining``: let go of it after the running batches. ``standby``: another node owns it; be
    ready here. A new ``handoff`` number asks to deliver what has arrived at once."""

    flow: str
    task: str
    epoch: int
    revision: int
    spec: str
    partitions: tuple[str, ...]
    draining: bool = False
    handoff: int = field(default=0, compare=False)
    standby: bool = False

    @property
    def key(self) -> str:
        return f"{self.flow}/{self.task}"


class Retries:
    """When a task is tried again: soon at first, later each time while it fails soon after a claim.
    ``clock`` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rest: tuple[Assignment, bool] | None = None
        """Nothing is done about it until ``_until``, unless the task begins to drain."""
        self._until = 0.0
        self._backoff = Backoff(FIRST_SECONDS, MOST_SECONDS)
        self._began = 0.0

    def begin(self) -> None:
        """The task is tried now."""
        self._began = self._clock()
        self._rest = None

    def failed(self, assignment: Assignment, *, draining: bool) -> None:
        """Rest, and for longer the next time."""
        if self._clock() - self._began > MOST_SECONDS:
            self._backoff.reset()
        self._rest, self._until = (assignment, draining), self._clock() + self._backoff.next()

    def wait(self, assignment: Assignment, *, draining: bool) -> None:
        """Rest for a moment: something is unavailable, but nothing has failed."""
        self._rest, self._until = (assignment, draining), self._clock() + FIRST_SECONDS

    def left_seconds(self, assignment: Assignment, *, draining: bool) -> float:
        """For how much longer to rest."""
        rests = self._rest == (assignment, draining)
        return self._until - self._clock() if rests else 0.0
