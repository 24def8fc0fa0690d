"""What an ingest worker says of itself to its node: that its work goes on, or what holds it.

Only the thread that does the work says so: while journals are opened, after each of them, and then
the event loop, from one of its own tasks. A thread that does nothing else would answer for a worker
that has stopped. The loop does not write to the disk itself: of the threads that do it asks whether
one is stuck.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from flumeng.agent.node.protocol import ALIVE_SECONDS, Message
from flumeng.journal.log.group_commit import commit_threads

ALIVE: Message = {"type": "alive"}
HELD_SECONDS = 10.0
"""A journal that gets no further with a group for so long, such as in a sync, is told: its disk is
slow or hangs. One that waits for room, tries again and again, and is not meant."""


class Opening:
    """To be called after each journal that was opened; says so now and then."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._next = time.monotonic() + ALIVE_SECONDS

    def __call__(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + ALIVE_SECONDS
            self._send(ALIVE)


async def stay_alive(send: Callable[[Message], None]) -> None:
    """Until cancelled. ``send`` may block; it gets a thread of its own, since those of the event
    loop may all be waiting for a disk."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "alive") as sender:
        while True:
            await loop.run_in_executor(sender, send, _alive())
            await asyncio.sleep(ALIVE_SECONDS)


def _alive() -> Message:
    journal = commit_threads().stuck(HELD_SECONDS)
    return {**ALIVE, "held": f"disk: journal {journal}"} if journal else ALIVE
