"""The sink ``sqlite``, exactly once by batch.

A table ``flumeng_batches`` remembers the number of the last batch of each split, in the transaction
of its events. A batch that is repeated after a crash finds its number there and writes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from flumeng.connectors.api import (
    JOURNAL,
    SEQ,
    SPLIT,
    Attempt,
    BatchId,
    LazyBatch,
    Row,
    TaskRevision,
    UnavailableError,
    Written,
)
from flumeng_example.options import Sqlite

COUNTED = pa.schema([pa.field("events", pa.int64())])
WAIT_SECONDS = 30


class SqliteSink:
    roots = ()
    identified = True
    """Its stage needs the columns with the identity of events."""
    writes_at_once = True
    """Its stage writes under the number of the batch."""

    def __init__(self, options: Sqlite, _task: TaskRevision) -> None:
        self._options = options

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        write = WriteSplit(self._options.path, self._options.table, attempt.batch)
        return batch.arrow(write, COUNTED)

    def written(self, rows: Sequence[Row]) -> Written:
        return Written(sum(row["events"] for row in rows))


@dataclass(frozen=True)
class WriteSplit:
    """Writes one split in one transaction, and yields a row with the number of its events."""

    path: str
    table: str
    batch: BatchId | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        events = [row for batch in batches for row in _rows(batch)]
        if events:
            try:
                self._write(events)
            except sqlite3.OperationalError as error:  # locked, or the disk is full
                raise UnavailableError(f"sqlite: {self.path}: {error}") from error
        yield pa.record_batch([pa.array([len(events)], pa.int64())], schema=COUNTED)

    def _write(self, events: list[tuple[int, str, int, str]]) -> None:
        with closing(sqlite3.connect(self.path, timeout=WAIT_SECONDS)) as database, database:
            database.execute("BEGIN IMMEDIATE")
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} (journal TEXT, seq INTEGER, body TEXT)"
            )
            if self._is_new(database, split=events[0][0]):
                database.executemany(
                    f"INSERT INTO {self.table} VALUES (?, ?, ?)", (event[1:] for event in events)
                )

    def _is_new(self, database: sqlite3.Connection, split: int) -> bool:
        """Record the number of the batch, unless it is recorded. There is none at least once."""
        if self.batch is None:
            return True
        database.execute(
            "CREATE TABLE IF NOT EXISTS flumeng_batches "
            "(series TEXT, split INTEGER, number INTEGER, PRIMARY KEY (series, split))"
        )
        noted = database.execute(
            "INSERT INTO flumeng_batches VALUES (?1, ?2, ?3) ON CONFLICT (series, split) "
            "DO UPDATE SET number = ?3 WHERE number < ?3",
            (self.batch.series, split, self.batch.number),
        )
        return noted.rowcount == 1


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[int, str, int, str]]:
    columns = [batch.column(name).to_pylist() for name in (SPLIT, JOURNAL, SEQ, "body")]
    for split, journal, seq, body in zip(*columns, strict=True):
        yield split, journal, seq, bytes(body).decode("utf-8", "replace")
