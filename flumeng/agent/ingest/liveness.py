"""Reports to the node that the worker's work goes on, or what holds it.

Only the thread that does the work reports: while journals are opened, and then the event loop,
which asks the disk threads whether one is stuck.
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
"""A group that makes no progress for so long, as in a sync, is reported: the disk hangs. Waiting
for room is retried, and not meant."""


class Opening:
    """Called after each opened journal; reports now and then."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._next = time.monotonic() + ALIVE_SECONDS

    def __call__(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + ALIVE_SECONDS
            self._send(ALIVE)


async def stay_alive(send: Callable[[Message], None]) -> None:
    """Runs until cancelled. ``send`` may block, and has its own thread: all those of the event loop
    may wait for a disk."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "alive") as sender:
        while True:
            await loop.run_in_executor(sender, send, _alive())
            await asyncio.sleep(ALIVE_SECONDS)


def _alive() -> Message:
    journal = commit_threads().stuck(HELD_SECONDS)
    return {**ALIVE, "held": f"disk: journal {journal}"} if journal else ALIVE
