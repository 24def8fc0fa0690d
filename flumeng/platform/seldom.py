"""What happens often is told in the log now and then; what may change is looked at so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

SECONDS = 60.0


class Seldom:
    """Of one kind of thing: whether it is to be told. Threads that ask at once may both tell it."""

    def __init__(self) -> None:
        self._next = float("-inf")

    def is_due(self) -> bool:
        """True once, and again after a minute."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + SECONDS
        return True


async def every(seconds: float, look: Callable[[], Awaitable[None]]) -> None:
    """Until it is cancelled; a look that fails is told, and the next one comes."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await look()
        except Exception:
            log.exception("what was looked at stays as it was")
