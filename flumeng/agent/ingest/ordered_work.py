"""Blocking work beside the event loop, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from flumeng.platform.errors import FlumengError

log = logging.getLogger(__name__)


class OrderedWork:
    """Used in the event loop. ``done`` is called after each piece, failed or not."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, work: Callable[..., None], *args: object) -> None:
        task = asyncio.create_task(self._run(work, args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Callable[..., None], args: tuple[object, ...]) -> None:
        async with self._turn:
            try:
                await asyncio.to_thread(work, *args)
            except (FlumengError, OSError) as error:
                log.error("%s", error)
        self._done()
