"""The way into one journal: its commit thread, seen from the event loop.

All callbacks arrive in the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from flumeng.ingest import batch
from flumeng.ingest.chunk import Chunk
from flumeng.journal.errors import JournalFailedError
from flumeng.journal.group_commit import GroupCommit
from flumeng.journal.journal import Journal

PENDING_BYTES = 16 << 20

Argument = TypeVar("Argument")


class Intake:
    """Made and used in the event loop. The journal is its own until ``stop`` has returned.

    ``on_pressure(True)`` asks to submit nothing more for now. ``on_failed`` is called once: nothing
    that is submitted from then on is kept.
    """

    def __init__(
        self,
        journal: Journal,
        on_pressure: Callable[[bool], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self.journal = journal
        self.truncated = 0
        self._commits: GroupCommit[Chunk] = GroupCommit(
            journal,
            self._build,
            on_pressure=_in_loop(on_pressure),
            on_failed=_in_loop(on_failed),
            max_bytes=PENDING_BYTES,
        )

    def submit(self, chunk: Chunk) -> None:
        """Queue a chunk; never blocks."""
        try:
            self._commits.submit(chunk)
        except JournalFailedError:
            return  # on_failed is on its way; what is not journaled was not accepted

    def trim(self, ack: int) -> None:
        self._commits.trim(ack)

    async def drain(self, timeout_seconds: float) -> None:
        """Return when everything submitted so far is durable.

        Raises JournalFailedError, and UnavailableError when time is up (the disk is full).
        """
        await asyncio.to_thread(self._commits.drain, timeout_seconds)

    async def stop(self) -> None:
        """End the commit thread after what was submitted; on a full disk the rest is left."""
        await asyncio.to_thread(self._commits.stop)

    def _build(self, chunks: list[Chunk]) -> Iterator[batch.Build]:
        return batch.build(chunks, self._count_truncated)

    def _count_truncated(self, lines: int) -> None:
        self.truncated += lines


def _in_loop(callback: Callable[[Argument], None]) -> Callable[[Argument], None]:
    """The same, callable from any thread; calls keep their order."""
    loop = asyncio.get_running_loop()

    def call(argument: Argument) -> None:
        loop.call_soon_threadsafe(callback, argument)

    return call
