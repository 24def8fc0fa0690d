"""Reports to the node that the worker makes progress, or the cause of a delay. Only the working
thread reports: while journals are opened, and then the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from flumeng.agent.node.protocol import ALIVE_SECONDS, Message
from flumeng.journal.log.group_commit import commit_threads

ALIVE: Message = {"type": "alive"}
HELD_SECONDS = 10.0
"""A commit without progress for so long, as in a sync, is reported; waiting for room is not."""


class Opening:
    """Called after each opened journal; periodically reports that the worker is alive."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._next = time.monotonic() + ALIVE_SECONDS

    def __call__(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + ALIVE_SECONDS
            self._send(ALIVE)


async def stay_alive(send: Callable[[Message], None]) -> None:
    """Report periodically that the worker is alive, until cancelled. ``send`` has its own thread,
    since all threads of the loop may wait for a disk."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "alive") as sender:
        while True:
            await loop.run_in_executor(sender, send, _alive())
            await asyncio.sleep(ALIVE_SECONDS)


def _alive() -> Message:
    journal = commit_threads().stuck(HELD_SECONDS)
    return {**ALIVE, "held": f"disk: journal {journal}"} if journal else ALIVE
