"""The contract of a pinned source, which runs in the event loop of an ingest worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

from flumeng.config import registry
from flumeng.connectors.api import ReceivedBlock, Source, SourceContext
from flumeng_testkit.component import ComponentContract

PATIENCE_SECONDS = 30.0
STILL_SECONDS = 0.5


class SourceContract(ComponentContract):
    kind: ClassVar[Literal["source"]] = "source"

    async def send(self, source: Source, folder: Path) -> None:
        """Send events to the source; called about ten times a second while a test waits. A source
        that listens does so at ``source.addresses``. Do nothing for a source of made-up events."""

    def test_it_is_a_source(self) -> None:
        assert issubclass(registry.get("source", self.name).implementation_class(), Source)

    def test_events_arrive(self, tmp_path: Path) -> None:
        taken = self._run(tmp_path, self._until_some)
        assert all(block.data for block in taken)

    def test_nothing_is_submitted_after_stop(self, tmp_path: Path) -> None:
        async def stop(source: Source, taken: list[ReceivedBlock]) -> None:
            await self._until_some(source, taken)
            await source.stop()
            count = len(taken)
            await asyncio.sleep(STILL_SECONDS)
            assert len(taken) == count

        self._run(tmp_path, stop)

    def test_paused_source_receives_nothing_until_it_resumes(self, tmp_path: Path) -> None:
        """Events in transit when it is paused may still arrive, for a moment."""

        async def pause(source: Source, taken: list[ReceivedBlock]) -> None:
            await self._until_some(source, taken)
            source.pause()
            source.pause()
            await asyncio.sleep(STILL_SECONDS)
            count = len(taken)
            await asyncio.sleep(STILL_SECONDS)
            assert len(taken) == count
            source.resume()
            del taken[:]
            await self._until_some(source, taken)

        self._run(tmp_path, pause)

    def test_stop_may_follow_a_start_that_failed_and_come_twice(self, tmp_path: Path) -> None:
        async def twice(source: Source, taken: list[ReceivedBlock]) -> None:
            del taken
            await source.stop()

        self._run(tmp_path, twice)

    async def _until_some(self, source: Source, taken: list[ReceivedBlock]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not taken:
                await self.send(source, self._folder)
                await asyncio.sleep(0.1)

    def _run(
        self, folder: Path, then: Callable[[Source, list[ReceivedBlock]], Any]
    ) -> list[ReceivedBlock]:
        """Start the source, run ``then``, stop the source; return the submitted blocks."""
        self._folder = folder
        taken: list[ReceivedBlock] = []
        failures: list[Exception] = []
        options = self.made(folder)
        implementation: Any = registry.get("source", self.name).implementation_class()

        async def run() -> None:
            context = SourceContext("host", {}, taken.append, failures.append, lambda: None)
            source: Source = implementation(options, context)
            try:
                await source.start()
                await then(source, taken)
            finally:
                await source.stop()
            assert failures == []

        asyncio.run(run())
        return taken
