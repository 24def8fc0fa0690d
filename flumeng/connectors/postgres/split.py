"""What an executor does with a split of a batch: all of it in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from flumeng.connectors.api import chunks
from flumeng.connectors.api.backoff import FRESH_SECONDS, Backoff
from flumeng.connectors.api.dead_letters import Refuse
from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.postgres import transaction
from flumeng.connectors.postgres.connection import Connection
from flumeng.connectors.postgres.target import COUNT_SCHEMA, Server, Target
from flumeng.connectors.postgres.transaction import Claim, Transaction
from flumeng.events.identity import SPLIT
from flumeng.platform.errors import UnavailableError
from flumeng.platform.idle_clients import IdleClients

CHUNK_BYTES = 8 * 1024 * 1024
"""About so much is one COPY."""
_idle: IdleClients[Server, Connection] = IdleClients()


@dataclass(frozen=True)
class WriteSplit:
    """Yields a row with the number of events. ``sink`` is what its flow calls this sink."""

    target: Target
    batch: BatchId | None
    sink: str
    patience_seconds: float | None = None

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        parts = chunks.gathered(batches, CHUNK_BYTES)
        first = next(parts, None)
        events = 0 if first is None else self._write(first, parts, refuse)
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
        _idle.keep(self.target.server, connection)
        return events

    def _begin(self, claim: Claim | None) -> tuple[Connection, Transaction]:
        """Tried for a while, for a server that begins anew does not answer at once."""
        backoff = Backoff(FRESH_SECONDS, self.patience_seconds)
        while True:
            try:
                return self._try_to_begin(claim)
            except UnavailableError as error:
                backoff.pause(error)

    def _try_to_begin(self, claim: Claim | None) -> tuple[Connection, Transaction]:
        server = self.target.server
        connection = _idle.take(server) or Connection(server)
        try:
            return connection, Transaction(connection, self.target, claim)
        except BaseException:
            connection.close()
            raise
