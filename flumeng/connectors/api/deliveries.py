"""Waits until the flow's cursor has acked a journal's events: each is then in all sinks, dropped by
a filter, or a dead letter. The node fetches the acks of journals with waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Waiter = TypeVar("Waiter")


class _Wait(NamedTuple, Generic[Waiter]):
    end: int
    deadline: float
    waiter: Waiter


class DeliveryWaits(Generic[Waiter]):
    """The pending waits, without I/O and clock: methods return the waiters whose wait has ended.
    ``end`` and ``now`` never decrease between calls of ``add``. So waits of equal length end in
    order, and a call costs as much as the waits that it ends."""

    def __init__(self) -> None:
        self._queues: dict[float, deque[_Wait[Waiter]]] = {}
        """Waits by their time limit in seconds."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, end: int, seconds: float, now: float, waiter: Waiter) -> None:
        """Add a wait until the ack is at ``end`` or above, for at most ``seconds``."""
        self._queues.setdefault(seconds, deque()).append(_Wait(end, now + seconds, waiter))

    def delivered(self, acked: int) -> list[Waiter]:
        """Remove and return waiters whose events all lie below ``acked``."""
        return self._take(lambda wait: wait.end <= acked)

    def late(self, now: float) -> list[Waiter]:
        """Remove and return waiters whose time is up."""
        return self._take(lambda wait: wait.deadline <= now)

    @property
    def next_deadline(self) -> float | None:
        return min((queue[0].deadline for queue in self._queues.values()), default=None)

    def _take(self, due: Callable[[_Wait[Waiter]], bool]) -> list[Waiter]:
        taken = []
        for seconds, queue in list(self._queues.items()):
            while queue and due(queue[0]):
                taken.append(queue.popleft().waiter)
            if not queue:
                del self._queues[seconds]
        return taken


class Deliveries:
    """Waits for deliveries of one journal, in the event loop. ``awaited``: whether there are waits;
    ``changed`` is called when it changes."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._acked = 0
        self._waits: DeliveryWaits[asyncio.Future[bool]] = DeliveryWaits()
        self._timer: asyncio.TimerHandle | None = None
        self.awaited = False

    def wait(self, end: int, seconds: float) -> asyncio.Future[bool]:
        """Return a future: True once events below ``end`` are delivered, False in ``seconds``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if end <= self._acked:
            future.set_result(True)
        else:
            self._waits.add(end, seconds, loop.time(), future)
            self._follow()
        return future

    def acked(self, offset: int) -> None:
        self._acked = offset
        self._answer(self._waits.delivered(offset), delivered=True)

    def _on_deadline(self) -> None:
        self._timer = None
        self._answer(self._waits.late(asyncio.get_running_loop().time()), delivered=False)

    def _answer(self, futures: list[asyncio.Future[bool]], *, delivered: bool) -> None:
        for future in futures:
            if not future.done():
                future.set_result(delivered)
        self._follow()

    def _follow(self) -> None:
        deadline = self._waits.next_deadline
        if self._timer is not None and (deadline is None or deadline < self._timer.when()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._on_deadline)
        if self.awaited != (deadline is not None):
            self.awaited = deadline is not None
            self._changed()
