"""The tail source: lines of files that grow.

The files are read in threads, since a slow disk must not hold up the event loop; all tail sources
share a few. Where nothing is new, the next look comes after ``poll_seconds``, or later when there
are so many sources that their looks would take more than a small part of a processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from flumeng.ingest.received_block import ReceivedBlock
from flumeng.ingest.source import Source, SourceContext
from flumeng.ingest.tailer import MEASURE_SECONDS, Tailer
from flumeng.spec.sources import Tail

log = logging.getLogger(__name__)

READERS = 8
IDLE_SHARE = 0.03
ACTIVE_SHARE = 0.25
"""Of a processor, at most, go into the looks of all sources at which nothing is new; and of those
at which something was new in the last ``ACTIVE_SECONDS``."""

ACTIVE_SECONDS = 5.0
TELL_AGAIN_SECONDS = 60.0


@functools.cache
def _readers() -> ThreadPoolExecutor:
    """The threads of this process in which files are read."""
    return ThreadPoolExecutor(READERS, "tail")


class TailSource(Source):
    """Follows the files of its options from the cursors in the journal's state on."""

    followers: int = 0
    """How many there are in this process."""

    def __init__(self, options: Tail, context: SourceContext) -> None:
        self._options = options
        self._context = context
        self._stopping = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._running: asyncio.Task[None] | None = None
        self._tell_at = float("-inf")

    async def start(self) -> None:
        context = self._context
        tailer = Tailer(
            self._options,
            context.hostname,
            context.state,
            context.clock_us,
            allows=context.policy.allows_file,
        )
        self._running = asyncio.create_task(self._run(tailer))

    async def stop(self) -> None:
        """What was read has been submitted; what was not will be read by the next run."""
        self._stopping.set()
        self._open.set()
        if self._running is not None:
            await self._running

    def pause(self) -> None:
        if not self._stopping.is_set():
            self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def _run(self, tailer: Tailer) -> None:
        loop = asyncio.get_running_loop()
        counters = self._context.counters
        skipped, cut = counters.skipped, counters.cut
        active_until = float("-inf")
        TailSource.followers += 1
        try:
            while True:
                while not self._open.is_set():
                    await loop.run_in_executor(_readers(), tailer.measure, loop.time())
                    counters.unread_bytes = tailer.unread_bytes
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._open.wait(), MEASURE_SECONDS)
                if self._stopping.is_set():
                    return
                blocks, took = await loop.run_in_executor(_readers(), _look, tailer, loop.time())
                for block in blocks:
                    self._context.submit(block)
                counters.skipped = skipped + tailer.skipped
                counters.cut = cut + tailer.cut
                counters.unread_bytes = tailer.unread_bytes
                self._tell_held(tailer.starved, loop.time())
                self._tell_problem(tailer)
                if blocks:
                    active_until = loop.time() + ACTIVE_SECONDS
                else:
                    share = ACTIVE_SHARE if loop.time() < active_until else IDLE_SHARE
                    await self._sleep(took * TailSource.followers / share)
        except Exception as error:
            self._context.fail(error)
        finally:
            TailSource.followers -= 1
            tailer.close()

    async def _sleep(self, at_least: float) -> None:
        try:
            seconds = max(self._options.poll_seconds, at_least)
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _tell_held(self, starved: bool, now: float) -> None:
        if starved and not self.held_by:
            self.held_since = now
        if starved and now >= self._tell_at:
            self._tell_at = now + TELL_AGAIN_SECONDS
            log.warning("tail: no descriptor is left for the next file; they are read in turn")
        self.held_by = "descriptors: too many open files" if starved else ""

    def _tell_problem(self, tailer: Tailer) -> None:
        problem = None
        if unreadable := tailer.unreadable:
            path, reason = next(iter(unreadable.items()))
            others = len(unreadable) - 1
            problem = f"cannot read {path}: {reason}" + (f" (and {others} more)" if others else "")
        if problem != self.problem:
            self.problem = problem
            self._context.changed()


def _look(tailer: Tailer, now: float) -> tuple[list[ReceivedBlock], float]:
    """What is new, and the processor time that it took."""
    began = time.thread_time()
    return tailer.poll(now), time.thread_time() - began
