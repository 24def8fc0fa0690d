"""Reports to the node that the worker makes progress, or the cause of a delay: while journals are
opened, and then from the event loop. When one of them hangs, the reports end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from flumeng.agent.node.protocol import ALIVE_SECONDS, Message
from flumeng.journal.log.group_commit import commit_threads

ALIVE: Message = {"type": "alive"}


class Opening:
    """Called after each opened journal; periodically reports that the worker is alive."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._next = time.monotonic() + ALIVE_SECONDS

    def __call__(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + ALIVE_SECONDS
            self._send(ALIVE)


async def stay_alive(
    send: Callable[[Message], None], seconds: float = ALIVE_SECONDS, held_seconds: float = 10.0
) -> None:
    """Report periodically that the worker is alive, until cancelled. ``send`` has its own thread,
    since all threads of the loop may wait for a disk. A commit without progress for
    ``held_seconds``, as in a sync, is reported; waiting for room is not."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "alive") as sender:
        while True:
            await loop.run_in_executor(sender, send, _alive(held_seconds))
            await asyncio.sleep(seconds)


def _alive(held_seconds: float) -> Message:
    journal = commit_threads().stuck(held_seconds)
    return {**ALIVE, "held": f"disk: journal {journal}"} if journal else ALIVE
