"""The tail source: lines of files that grow.

The files are read in a thread of its own, since a slow disk must not hold up the event loop.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from flumeng.ingest.source import Source, SourceContext
from flumeng.ingest.tailer import Tailer
from flumeng.spec.sources import Tail


class TailSource(Source):
    """Follows the files of its options from the cursors in the journal's state on."""

    def __init__(self, options: Tail, context: SourceContext) -> None:
        self._options = options
        self._context = context
        self._stopping = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._running: asyncio.Task[None] | None = None

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
        with ThreadPoolExecutor(1, thread_name_prefix="tail") as reader:
            try:
                while True:
                    await self._open.wait()
                    if self._stopping.is_set():
                        return
                    blocks = await loop.run_in_executor(reader, tailer.poll, loop.time())
                    for block in blocks:
                        self._context.submit(block)
                    counters.skipped = skipped + tailer.skipped
                    counters.cut = cut + tailer.cut
                    self._tell_problem(tailer)
                    if not blocks:
                        await self._sleep()
            except Exception as error:
                self._context.fail(error)
            finally:
                tailer.close()

    async def _sleep(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._options.poll_seconds)
        except TimeoutError:
            return

    def _tell_problem(self, tailer: Tailer) -> None:
        problem = None
        if unreadable := tailer.unreadable:
            path, reason = next(iter(unreadable.items()))
            others = len(unreadable) - 1
            problem = f"cannot read {path}: {reason}" + (f" (and {others} more)" if others else "")
        if problem != self.problem:
            self.problem = problem
            self._context.changed()
