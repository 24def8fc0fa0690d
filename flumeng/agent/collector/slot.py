"""Fair scheduling of waiting tasks to slots: fair between flows, and small batches together.

A free slot takes the batch of the flow that has waited longest, relative to its batch interval. If
that batch may share a Spark job, others join it, up to a job's capacity: a single batch starts at
once, and of a thousand small batches hundreds run in one job. Small batches of tasks whose last one
failed share jobs with each other only. Tasks are *apart* after a hang, a slow start or a failed
shared job, and while their flow may have crashed the collector: they never share. Both kinds have
separate slots.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from flumeng.agent.collector.batch import Work

SHARED, FAILING, APART = LANES = ("shared", "failing", "apart")
"""Kinds of slots, by the tasks that wait for them."""
SHARED_MEMBERS = 128
SHARED_SECONDS = 0.3
"""A shared job should end within this time, since the next job waits for it."""
PART_OF_WAIT = 0.1
"""A shared job may also take this part of the longest wait: under load, larger jobs cost less."""
SHARED_EVENTS = 200_000
SMALL_EVENTS = 20_000
"""A batch of more events does not share a job."""
LEAST_INTERVAL_SECONDS, MOST_INTERVAL_SECONDS = 0.2, 2.0
"""Bounds of the interval used for fairness: a flow gets at most ten batches for one of another."""


class Member(Protocol):
    def begin(self, most_events: int | None) -> Work | None:
        """Choose and stage a batch; None if no events are left, or after a withdrawal or error.
        ``most_events`` None: any size, unshared. Called at most once a request. Raises nothing."""


@dataclass(frozen=True, eq=False)
class Request:
    """A task's request for a slot. ``shareable``: all filters and sinks are Arrow, and the batch
    may take as long as a shared job. ``failing``: the task's last batch failed, and may have made
    others wait. ``gather_seconds``: how long the flow gathers events."""

    flow: str
    member: Member
    events: int
    shareable: bool
    apart: bool = False
    failing: bool = False
    gather_seconds: float = 1.0

    @property
    def together(self) -> bool:
        return self.shareable and not self.apart and self.events <= SMALL_EVENTS

    @property
    def lane(self) -> str:
        if self.apart:
            return APART
        return FAILING if self.failing and self.together else SHARED

    @property
    def interval_seconds(self) -> float:
        return min(max(self.gather_seconds, LEAST_INTERVAL_SECONDS), MOST_INTERVAL_SECONDS)


class SharedSize:
    """Adapts the number of batches in a shared job to the job's time, at most twofold per job."""

    LEAST = 4

    def __init__(self) -> None:
        self.members = SHARED_MEMBERS

    def measured(self, members: int, seconds: float, allowed_seconds: float) -> None:
        if members < self.members and seconds <= allowed_seconds:
            return
        ideal = members * allowed_seconds / max(seconds, 1e-3)
        near = min(max(ideal, self.members / 2), self.members * 2)
        self.members = int(min(max(self.LEAST, near), SHARED_MEMBERS))


@dataclass(eq=False)
class _Queue:
    """The requests of one flow. ``since``: when the flow began to wait for its next slot."""

    since: float
    requests: deque[Request] = field(default_factory=deque)

    def waited(self, now: float) -> float:
        return (now - self.since) / self.requests[0].interval_seconds


class Slots:
    """The requests that wait for a slot. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: dict[str, dict[str, _Queue]] = {lane: {} for lane in LANES}
        self._waiting: set[Request] = set()
        self._size = SharedSize()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, request: Request) -> None:
        self._waiting.add(request)
        queues = self._queues[request.lane]
        if request.flow not in queues:
            queues[request.flow] = _Queue(self._clock())
        queues[request.flow].requests.append(request)

    def withdraw(self, request: Request) -> bool:
        if request not in self._waiting:
            return False
        self._remove(request)
        return True

    def next(self, lane: str) -> list[Request]:
        """Return requests for the next job of a free slot of ``lane``; empty when none waits."""
        queues, now = self._queues[lane], self._clock()
        if not queues:
            return []
        ordered = sorted(queues.values(), key=lambda queue: -queue.waited(now))
        first = ordered[0].requests[0]
        chosen = [first]
        if first.together:
            events = first.events
            for request in _in_turn(queue.requests for queue in ordered):
                if len(chosen) >= self._size.members:
                    break
                if request is not first and request.together:
                    if events + request.events > SHARED_EVENTS:
                        break
                    events += request.events
                    chosen.append(request)
        for request in chosen:
            queues[request.flow].since = now
            self._remove(request)
        return chosen

    def measured(self, members: int, seconds: float) -> None:
        began = min((queue.since for queue in self._queues[SHARED].values()), default=inf)
        longest = max(0.0, self._clock() - began)
        self._size.measured(members, seconds, max(SHARED_SECONDS, PART_OF_WAIT * longest))

    def _remove(self, request: Request) -> None:
        queues = self._queues[request.lane]
        queue = queues[request.flow]
        queue.requests.remove(request)
        if not queue.requests:
            del queues[request.flow]
        self._waiting.remove(request)


def bounds(requests: Sequence[Request]) -> list[int | None]:
    """Return the most events of each batch of a job that begins; None, any size, for a single one.
    Batches have grown while they waited, so the room left in a shared job is divided equally."""
    if len(requests) == 1:
        return [None]
    room = (SHARED_EVENTS - sum(request.events for request in requests)) // len(requests)
    return [min(request.events + room, SMALL_EVENTS) for request in requests]


def _in_turn(queues: Iterable[Iterable[Request]]) -> Iterator[Request]:
    flows = [iter(waiting) for waiting in queues]
    while flows:
        left = []
        for waiting in flows:
            request = next(waiting, None)
            if request is not None:
                left.append(waiting)
                yield request
        flows = left
