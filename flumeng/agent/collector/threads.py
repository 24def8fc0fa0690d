"""A bounded thread pool that survives hung calls, as on a dead disk: their threads are replaced."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from flumeng.platform import fail_fast
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

MOST_REPLACED = 32


@dataclass(eq=False)
class _Call:
    """A submitted call. ``on_hang`` is called once, with the seconds so far. ``replaced``: another
    thread was started in place of its thread, which ends with the call."""

    run: Callable[[], None]
    on_hang: Callable[[float], None]
    began: float = 0.0
    reported: bool = False
    replaced: bool = False


class Threads:
    """A pool that starts a thread when a call waits and none is idle, up to ``most``."""

    def __init__(self, name: str, most: int, *, limit_seconds: float) -> None:
        self._name = name
        self._most = most
        self._limit_seconds = limit_seconds
        self._news = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._running: set[_Call] = set()
        self._idle = 0
        self._there = 0
        self._replaced = self._made = 0
        self._thread_shortage = RateLimitedLog(log)

    def submit(self, run: Callable[[], None], on_hang: Callable[[float], None]) -> None:
        """Queue a call of ``run``, which must not raise, after all earlier calls."""
        with self._news:
            self._waiting.append(_Call(run, on_hang))
            if self._idle < len(self._waiting) and self._there < self._most:
                self._start()
            self._news.notify()

    def check_limits(self) -> None:
        """Replace the threads of calls over the limit, and report those calls."""
        now = time.monotonic()
        with self._news:
            late = [call for call in self._running if now - call.began >= self._limit_seconds]
            for call in late:
                may_be = not call.replaced and self._replaced < MOST_REPLACED
                if may_be and self._start():
                    call.replaced = True
                    self._replaced += 1
            news = [call for call in late if not call.reported]
            for call in news:
                call.reported = True
        for call in news:
            call.on_hang(now - call.began)

    def _start(self) -> bool:
        try:
            fail_fast.start(f"{self._name}-{self._made + 1}", self._work)
        except RuntimeError as error:
            if not self._there:
                raise
            self._thread_shortage.warning(
                "calls of %s wait for more threads: %s", self._name, error
            )
            return False
        self._there += 1
        self._made += 1
        return True

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._waiting:
                    self._idle += 1
                    self._news.wait()
                    self._idle -= 1
                call = self._waiting.popleft()
                call.began = time.monotonic()
                self._running.add(call)
            call.run()
            with self._news:
                self._running.discard(call)
                if call.replaced:
                    self._there -= 1
                    self._replaced -= 1
                    return
