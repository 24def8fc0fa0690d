"""The source ``disk_usage``. It runs in the event loop of the ingest worker."""

from __future__ import annotations

import asyncio
import json
import shutil

from flumeng.connectors.api import (
    LineRules,
    Origin,
    ReceivedBlock,
    Source,
    SourceContext,
    UserError,
)
from flumeng_example.options import DiskUsage

MAX_LINE_BYTES = 16 * 1024


class DiskUsageSource(Source):
    def __init__(self, options: DiskUsage, context: SourceContext) -> None:
        self._options = options
        self._context = context
        rules = LineRules(MAX_LINE_BYTES, b"", keep_empty=False)
        self._origin = Origin(context.hostname, (("source", "disk_usage"),), rules)
        self._paused = False
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._measured)  # a missing path fails the start
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    async def _run(self) -> None:
        while True:
            if not self._paused:  # a measurement would be stale when the journal takes it
                try:
                    lines = await asyncio.to_thread(self._measured)
                except UserError as error:
                    self._context.fail(error)
                    return
                block = ReceivedBlock(lines, self._origin, self._context.clock_us())
                self._context.submit(block)
            await asyncio.sleep(self._options.every_seconds)

    def _measured(self) -> bytes:
        """A line of JSON for each path. Raises UserError for a missing path."""
        lines = []
        for path in self._options.paths:
            try:
                usage = shutil.disk_usage(path)
            except OSError as error:
                raise UserError(f"disk_usage: {path}: {error.strerror}") from error
            lines.append(json.dumps({"path": path, "total": usage.total, "free": usage.free}))
        return "".join(f"{line}\n" for line in lines).encode()
