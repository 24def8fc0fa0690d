"""Tail source: follows files and reads new lines, in a few threads shared by all tail sources. The
pause after a poll without new lines is ``poll_seconds``, or longer to limit CPU time."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.connectors.api.source import Source, SourceContext
from flumeng.connectors.tail.options import Tail
from flumeng.connectors.tail.tailer import Tailer

log = logging.getLogger(__name__)

READERS = 8
IDLE_SHARE = 0.03
ACTIVE_SHARE = 0.25
"""CPU share of all sources' idle polls: this one for ``ACTIVE_SECONDS`` after new lines."""

ACTIVE_SECONDS = 5.0
WARN_AGAIN_SECONDS = 60.0
LOST_SECONDS = 86_400.0


@functools.cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(READERS, "tail")


class TailSource(Source):
    """Follows the files of its options from the positions in the journal's state."""

    followers: int = 0
    """The number of running sources in this process."""

    def __init__(self, options: Tail, context: SourceContext) -> None:
        self._options = options
        self._context = context
        self._stopping = False
        self._paused = False
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._warn_at = self._lost_at = float("-inf")
        self._lost = 0

    async def start(self) -> None:
        context = self._context
        tailer = Tailer(
            self._options,
            context.hostname,
            context.state,
            context.clock_us,
            note=context.note,
            allows=context.policy.allows_file,
        )
        self._running = asyncio.create_task(self._run(tailer))

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._running is not None:
            await self._running

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._wake.set()

    async def _run(self, tailer: Tailer) -> None:
        loop = asyncio.get_running_loop()
        counters = self._context.counters
        skipped, cut, missed = counters.skipped, counters.cut, counters.missed
        holes = tailer.hole_bytes
        active_until = float("-inf")
        TailSource.followers += 1
        try:
            while not self._stopping:
                self._wake.clear()
                step = functools.partial(_turn, tailer, loop.time(), paused=self._paused)
                blocks, took = await loop.run_in_executor(_readers(), step)
                for block in blocks:
                    self._context.submit(block)
                counters.skipped = skipped + tailer.tracked.skipped
                counters.cut = cut + tailer.cut
                counters.missed = missed + tailer.tracked.missed
                counters.unread_bytes = tailer.unread_bytes
                counters.discarded_bytes += tailer.hole_bytes - holes
                holes = tailer.hole_bytes
                counters.lost_files = self._lost_lately(tailer, loop.time())
                self._report_starvation(tailer.starved, loop.time())
                self._report_problem(tailer)
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
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return

    def _lost_lately(self, tailer: Tailer, now: float) -> int:
        lost = tailer.cut + tailer.tracked.missed
        if lost > self._lost:
            self._lost, self._lost_at = lost, now
        return lost if now - self._lost_at < LOST_SECONDS else 0

    def _report_starvation(self, starved: bool, now: float) -> None:
        if starved and not self.held_by:
            self.held_since = now
        if starved and now >= self._warn_at:
            self._warn_at = now + WARN_AGAIN_SECONDS
            log.warning("tail: out of file descriptors, raise their limit: files are read in turns")
        self.held_by = "descriptors: too many open files" if starved else ""

    def _report_problem(self, tailer: Tailer) -> None:
        problem = None
        if tailer.tracked.not_noted:
            problem = f"cannot save the list of tailed files: {tailer.tracked.not_noted}"
        elif unreadable := tailer.unreadable:
            path, reason = next(iter(unreadable.items()))
            others = len(unreadable) - 1
            problem = f"cannot read {path}: {reason}" + (f" (and {others} more)" if others else "")
        elif unsearched := tailer.unsearched:
            folder, reason = next(iter(unsearched.items()))
            problem = f"cannot search {folder} for files: {reason}"
        if problem != self.problem:
            self.problem = problem
            self._context.changed()


def _turn(tailer: Tailer, now: float, *, paused: bool) -> tuple[list[ReceivedBlock], float]:
    """Poll, or only watch while paused; return new blocks and the processor time used."""
    began, blocks = time.thread_time(), []
    if paused:
        tailer.watch(now)
    else:
        blocks = tailer.poll(now)
    return blocks, time.thread_time() - began
