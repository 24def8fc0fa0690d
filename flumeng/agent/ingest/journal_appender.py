"""The group commit of one journal, for the event loop. All callbacks run in the loop's thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from flumeng.agent.ingest import batch
from flumeng.connectors.api.counters import Counters
from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.journal.log.contract import Appendable, Encoded
from flumeng.journal.log.errors import JournalFailedError
from flumeng.journal.log.group_commit import GroupCommit
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

PENDING_BYTES = 16 << 20


class _Received(NamedTuple):
    block: ReceivedBlock
    counters: Counters

    @property
    def nbytes(self) -> int:
        return self.block.nbytes


class JournalAppender:
    """Appends received blocks to a journal, which it owns until ``stop`` has returned. Not
    thread-safe. ``on_pressure(True)`` asks for a pause. ``held_by``: why the journal accepts
    nothing; empty when it is only slow. ``on_failed`` is called once: blocks submitted afterwards
    are lost. ``acked``: the last ack passed to ``trim``, perhaps not applied yet."""

    def __init__(
        self,
        journal: Appendable[Encoded],
        on_pressure: Callable[[bool], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self.journal: Appendable[Any] = journal
        self.durable_keys = set(journal.state)
        self.acked = 0
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._on_pressure = on_pressure
        self._pressure = False
        self._unfit: set[ReceivedBlock] = set()
        self._cuts = RateLimitedLog(log)
        self._commits: GroupCommit[_Received] = GroupCommit(
            journal,
            self._build,
            on_durable=self._tell_durable,
            on_pressure=self._set_pressure,
            on_failed=lambda error: self._in_loop(on_failed, error),
            max_bytes=PENDING_BYTES,
        )

    @property
    def held_by(self) -> str:
        return self._commits.held_by

    @property
    def pending_bytes(self) -> int:
        return self._commits.pending_bytes

    def submit(self, block: ReceivedBlock, counters: Counters) -> None:
        try:
            self._commits.submit(_Received(block, counters))
        except JournalFailedError:
            return  # on_failed follows; the block was not accepted

    def set_group(self, seconds: float, nbytes: int) -> None:
        self._commits.set_group(seconds, nbytes)

    def trim(self, ack: int) -> None:
        self.acked = ack
        self._commits.trim(ack)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once all blocks submitted so far are durable or have failed."""
        self._commits.when_settled(lambda: self._in_loop(callback))

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until all blocks submitted so far are durable. Raises JournalFailedError, and
        UnavailableError after the timeout, as on a full disk."""
        settled = asyncio.Event()
        self.when_settled(settled.set)
        try:
            await asyncio.wait_for(settled.wait(), timeout_seconds)
        except TimeoutError as error:
            raise self._commits.not_settled() from error
        self._commits.require_sound()

    async def stop(self) -> None:
        """Commit the submitted blocks and stop; on a full disk the remaining blocks are dropped."""
        ended = asyncio.Event()
        self._commits.end(lambda: self._in_loop(ended.set))
        await ended.wait()

    def _build(self, group: list[_Received]) -> Iterator[Any]:
        owners = dict(group)

        def count(counted: batch.Counts) -> None:
            counters = owners[counted.block]
            counters.bytes += counted.block.received_bytes
            counters.events += counted.events
            counters.truncated += counted.truncated
            counters.discarded_bytes += counted.cut_bytes
            if counted.truncated:
                self._cuts.warning(
                    "journal %s: a message from %s is longer than %d bytes and was cut; the source "
                    "has sent %d such messages so far, and %d bytes were discarded",
                    self.journal.id,
                    counted.block.origin.host,
                    counted.block.origin.rules.max_line_bytes,
                    counters.truncated,
                    counters.discarded_bytes,
                )

        def leave_out(block: ReceivedBlock, error: Exception) -> None:
            counters = owners[block]
            counters.bytes += block.received_bytes
            counters.discarded_bytes += block.received_bytes
            self._unfit.add(block)
            log.error(
                "journal %s: %d bytes from %s cannot be stored and are lost: %s",
                *(self.journal.id, block.received_bytes, block.origin.host, error),
            )
            if block.on_unfit is not None:
                self._in_loop(block.on_unfit, str(error))

        return batch.encode(list(owners), count, leave_out, self.journal.encode)

    def _tell_durable(self, group: list[_Received], end: int) -> None:
        for block, _ in group:
            for key, value in (block.state or {}).items():
                if value is None:
                    self.durable_keys.discard(key)
                else:
                    self.durable_keys.add(key)
        callbacks = [
            block.on_durable
            for block, _ in group
            if block.on_durable is not None and block not in self._unfit
        ]
        self._unfit.difference_update(block for block, _ in group)
        if callbacks:
            self._in_loop(_call, callbacks, end)

    def _set_pressure(self, pressure: bool) -> None:
        """Report pressure in the event loop, from ``submit`` at once: the loop reads a connection
        many times before it runs scheduled calls. A delayed call reports the newest value."""
        self._pressure = pressure
        if threading.get_ident() == self._loop_thread:
            self._pass_pressure_on()
        else:
            self._in_loop(self._pass_pressure_on)

    def _pass_pressure_on(self) -> None:
        self._on_pressure(self._pressure)

    def _in_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(callback, *arguments)


def _call(callbacks: list[Callable[[int], None]], end: int) -> None:
    for callback in callbacks:
        callback(end)
