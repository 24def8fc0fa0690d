"""Which of the waiting tasks write next: fair between flows, and small batches together. Pure.

A free slot takes the batch of the flow whose turn it is. When that batch may share a Spark job, all
others that may go along, one of each flow after the other, as far as one job holds them. So a batch
that is alone leaves at once, and of a thousand small ones hundreds cost one job.

A task whose last batch hung, or whose job broke down, is *apart*: it waits for slots of its own
kind and never shares, so that it holds up nobody but others like it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

SHARED_MEMBERS = 128
SHARED_SECONDS = 0.5
"""A shared job is to be over by then: whoever comes next waits for it."""
SHARED_EVENTS = 200_000
SMALL_EVENTS = 20_000
"""A batch of more events is cut into splits that use all cores: it has a job of its own."""


@dataclass(frozen=True)
class Request:
    """A task has about ``events`` to write. ``shareable``: its filters and sinks are all Arrow."""

    flow: str
    key: str
    events: int
    shareable: bool
    apart: bool = False

    @property
    def together(self) -> bool:
        return self.shareable and not self.apart and self.events <= SMALL_EVENTS


class SharedSize:
    """How many batches share a job, so that it takes about ``SHARED_SECONDS``: follows the measured
    time of a batch, at most by a factor of two a job."""

    LEAST = 4

    def __init__(self) -> None:
        self.members = SHARED_MEMBERS

    def measured(self, members: int, seconds: float) -> None:
        """A job of so many batches took that long. One that was not full and short says nothing."""
        if members < self.members and seconds <= SHARED_SECONDS:
            return
        ideal = members * SHARED_SECONDS / max(seconds, 1e-3)
        near = min(max(ideal, self.members / 2), self.members * 2)
        self.members = int(min(max(self.LEAST, near), SHARED_MEMBERS))


class Slots:
    """The requests that wait, at most one a task, by flow in the order of their turns."""

    def __init__(self) -> None:
        self._flows: dict[bool, OrderedDict[str, deque[Request]]] = {
            False: OrderedDict(),
            True: OrderedDict(),
        }
        self._waiting: dict[str, Request] = {}
        self.size = SharedSize()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, request: Request) -> None:
        """Wait for a slot; the task does not wait for one yet."""
        assert request.key not in self._waiting, f"{request.key} waits for a slot already"
        self._waiting[request.key] = request
        self._flows[request.apart].setdefault(request.flow, deque()).append(request)

    def withdraw(self, key: str) -> bool:
        """Wait no more; False when the task does not wait."""
        request = self._waiting.get(key)
        if request is None:
            return False
        self._remove(request)
        return True

    def next(self, *, apart: bool) -> list[Request]:
        """Who writes in a slot of that kind that is free now, in one job; nobody: empty."""
        flows = self._flows[apart]
        if not flows:
            return []
        first = next(iter(flows.values()))[0]
        chosen = [first]
        if first.together:
            events = first.events
            for request in self._in_turn(apart):
                if len(chosen) >= self.size.members:
                    break
                if request is not first and request.together:
                    if events + request.events > SHARED_EVENTS:
                        break
                    events += request.events
                    chosen.append(request)
        for request in chosen:
            self._remove(request)
            if request.flow in flows:
                flows.move_to_end(request.flow)
        return chosen

    def _in_turn(self, apart: bool) -> Iterator[Request]:
        """One of each flow, then the second one of each."""
        flows = [iter(waiting) for waiting in self._flows[apart].values()]
        while flows:
            left = []
            for waiting in flows:
                request = next(waiting, None)
                if request is not None:
                    left.append(waiting)
                    yield request
            flows = left

    def _remove(self, request: Request) -> None:
        flows = self._flows[request.apart]
        flows[request.flow].remove(request)
        if not flows[request.flow]:
            del flows[request.flow]
        del self._waiting[request.key]
