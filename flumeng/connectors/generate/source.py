"""Generate source: numbered events at a chosen rate. Bodies: the seed, the number (16 digits, from
0), filling. The next number is stored with the events: each occurs once, even after ``kill -9``."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import numpy as np
from numpy.typing import NDArray

from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.api.source import Source, SourceContext
from flumeng.connectors.generate.options import Generate
from flumeng.journal.log.frame import MAX_ROWS

DIGITS = 16
CHUNK_BYTES = 1 << 18
TICK_SECONDS = 0.02
CATCH_UP_SECONDS = 1.0
"""Longest part of a pause for which the missed events are generated afterwards."""

_PATTERN = np.frombuffer(b"the quick brown fox jumps over the lazy dog 0123456789 ", np.uint8)


class GenerateSource(Source):
    def __init__(self, options: Generate, context: SourceContext) -> None:
        self._options = options
        self._context = context
        self._key = f"generate:{options.seed}"
        attrs = (("source", "generate"), ("seed", str(options.seed)))
        self._origin = Origin(
            context.hostname, attrs, LineRules(options.bytes, b"", keep_empty=True)
        )
        self._number = cast("int", context.state.get(self._key, 0))
        self._rows_at_once = max(1, min(MAX_ROWS, CHUNK_BYTES // (options.bytes + 1)))
        self._stopping = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._stopping.set()
        self._open.set()
        if self._running is not None:
            await self._running

    def pause(self) -> None:
        if not self._stopping.is_set():
            self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def _run(self) -> None:
        """Submit events at the given rate; without a rate, as fast as the journal accepts them."""
        rate, loop = self._options.events_per_second, asyncio.get_running_loop()
        due, then = 0.0, loop.time()
        while True:
            await self._open.wait()
            if self._stopping.is_set() or self._left() == 0:
                return
            rows = min(self._rows_at_once, self._left())
            if rate:
                now = loop.time()
                due = min(due + (now - then) * rate, CATCH_UP_SECONDS * rate)
                then = now
                rows = min(rows, int(due))
                due -= rows
            if rows:
                self._submit(rows)
            await self._sleep(TICK_SECONDS if rate and due < 1 else 0)

    def _left(self) -> int:
        count = self._options.count
        return max(count - self._number, 0) if count else self._rows_at_once

    def _submit(self, rows: int) -> None:
        data = lines(self._options.seed, self._number, rows, self._options.bytes)
        self._number += rows
        state = {self._key: self._number}
        self._context.submit(
            ReceivedBlock(data, self._origin, self._context.clock_us(), state=state)
        )

    async def _sleep(self, seconds: float) -> None:
        if not seconds:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def lines(seed: int, first: int, rows: int, nbytes: int) -> bytes:
    """Return the bodies of ``rows`` events, numbered from ``first``, each with a newline."""
    head = f"{seed} ".encode()
    end = len(head) + DIGITS
    made = np.empty((rows, nbytes + 1), np.uint8)
    made[:, : len(head)] = np.frombuffer(head, np.uint8)
    numbers: NDArray[np.int64] = np.arange(first, first + rows, dtype=np.int64)
    phases = ((numbers + seed) * 7 % len(_PATTERN))[:, None]
    for column in range(end - 1, len(head) - 1, -1):
        made[:, column] = numbers % 10 + ord("0")
        numbers //= 10
    if end < nbytes:
        made[:, end] = ord(" ")
        made[:, end + 1 : nbytes] = _PATTERN[
            (phases + np.arange(nbytes - end - 1)[None, :]) % len(_PATTERN)
        ]
    made[:, nbytes] = ord("\n")
    return made.tobytes()
