"""What an executor does with a split of a batch: all of it in one transaction."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from flumeng.errors import UnavailableError
from flumeng.filters.identity import SPLIT
from flumeng.sinks import BatchId
from flumeng.sinks.dead_letters import Refuse
from flumeng.sinks.postgres import idle_connections, transaction
from flumeng.sinks.postgres.connection import Connection
from flumeng.sinks.postgres.target import COUNT_SCHEMA, Target
from flumeng.sinks.postgres.transaction import Claim, Transaction

CHUNK_BYTES = 8 * 1024 * 1024
"""About so much is one COPY."""
RETRY_SECONDS = 25.0
FIRST_WAIT_SECONDS = 0.2


@dataclass(frozen=True)
class WriteSplit:
    """Yields a row with the number of events. ``sink`` is what its flow calls this sink."""

    target: Target
    batch: BatchId | None
    sink: str

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        chunks = _gathered(batches)
        first = next(chunks, None)
        events = 0 if first is None else self._write(first, chunks, refuse)
        yield pa.RecordBatch.from_arrays([pa.array([events], pa.int64())], schema=COUNT_SCHEMA)

    def _write(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], refuse: Refuse) -> int:
        claim = None
        if self.batch is not None:
            claim = Claim(self.batch, self.sink, first.column(SPLIT)[0].as_py())
        connection, opened = self._begin(claim)
        events = 0
        try:
            before = opened.refused_before() if opened.repeated else None
            if before is not None:
                opened.roll_back()
            for chunk in chain([first], rest):
                events += chunk.num_rows
                if before is None:
                    opened.write(chunk, refuse)
                else:
                    transaction.again(chunk, before, refuse)
            if before is None:
                opened.commit()
        except BaseException:
            connection.close()
            raise
        idle_connections.keep(self.target.server, connection)
        return events

    def _begin(self, claim: Claim | None) -> tuple[Connection, Transaction]:
        """Tried for a while, for a server that begins anew does not answer at once."""
        wait, deadline = FIRST_WAIT_SECONDS, time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return self._try_to_begin(claim)
            except UnavailableError:
                if time.monotonic() + wait > deadline:
                    raise
            time.sleep(wait * random.uniform(0.5, 1))
            wait *= 2

    def _try_to_begin(self, claim: Claim | None) -> tuple[Connection, Transaction]:
        connection = idle_connections.take(self.target.server)
        try:
            return connection, Transaction(connection, self.target, claim)
        except BaseException:
            connection.close()
            raise


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same events in batches of about CHUNK_BYTES; none is empty."""
    held: list[pa.RecordBatch] = []
    for batch in chain.from_iterable(map(_cut, batches)):
        held.append(batch)
        if sum(part.nbytes for part in held) >= CHUNK_BYTES:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(1, batch.nbytes))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
