"""``df.write`` and ``df.writeStream``: tasks send their rows to the sources ``http`` of a flow.

Rules
1. A task ends when a source has accepted each of its events, as the source's option ``ack`` says.
2. Nothing is taken back: events of a failed write stay, and a repeated task sends its own again.
3. A repeated event has the id of the first one, see ``outgoing``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from flumeng.agent.pyspark.outgoing import ATTRS, BODY, TS, Outgoing, parts
from flumeng.agent.pyspark.targets import Requests, Targets
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.platform.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0 passes the rows of a stream one by one
        DataSourceStreamArrowWriter = None

REQUEST_BYTES = 2 << 20
"""Most bytes of a request, if the source takes so many."""
ROWS_AT_ONCE = 10_000
QUERY, EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of tasks of a stream."""
TAKES_ARROW = DataSourceStreamArrowWriter is not None


@dataclass
class Accepted(WriterCommitMessage):
    """The message of a task whose events were all accepted."""

    events: int


@dataclass(frozen=True)
class TaskWriter:
    """Writes the rows of one task. ``columns``: of the rows, by column of events."""

    targets: Targets
    columns: Mapping[str, str]

    def write(self, write: str, batches: Iterator[pa.RecordBatch]) -> Accepted:
        """Return when all rows were accepted. Raises as ``Requests.send`` and ``Outgoing``."""
        partition = _task().partitionId()
        outgoing, requests = (
            Outgoing(self.columns, write, partition),
            Requests(self.targets, partition),
        )
        accepted = 0
        for rows in batches:
            for part in parts(outgoing.events(rows), REQUEST_BYTES):
                requests.send(part)
                accepted += len(part)
        return Accepted(accepted)


class BatchWriter(DataSourceArrowWriter):
    """``df.write``. Without a ``write_id`` the ids of each write are new."""

    def __init__(self, writer: TaskWriter, write_id: str) -> None:
        self._writer = writer
        self._write = write_id or uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Accepted:
        return self._writer.write(self._write, iterator)


class StreamArrowWriter(DataSourceStreamArrowWriter or DataSourceStreamWriter):  # type: ignore[misc]
    """``df.writeStream`` since Spark 4.1. The query and its epoch tell a write from others."""

    def __init__(self, writer: TaskWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Accepted:
        return self._writer.write(_epoch(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the tasks have ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: accepted events stay."""


class StreamRowWriter(StreamArrowWriter):
    """``df.writeStream`` of Spark 4.0."""

    def write(self, iterator: Iterator[Row]) -> Accepted:
        return self._writer.write(_epoch(), batches_of(iterator, self._writer.columns))


def batches_of(rows: Iterator[Row], columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    while some := list(islice(rows, ROWS_AT_ONCE)):
        arrays = {
            given: pa.array(
                [_value(name, row[given]) for row in some], EVENT_SCHEMA.field(name).type
            )
            for name, given in columns.items()
        }
        yield pa.RecordBatch.from_pydict(arrays)


def _value(name: str, value: Any) -> Any:
    """Return a value for Arrow. Times of rows are in the local zone, and do not name it."""
    if name == BODY and isinstance(value, str):
        return value.encode()
    if name == TS and isinstance(value, datetime):
        return value.astimezone(UTC)
    if name == ATTRS and value is not None:
        return list(value.items())
    return value


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark calls write in tasks"
    return task


def _epoch() -> str:
    task = _task()
    query, epoch = task.getLocalProperty(QUERY), task.getLocalProperty(EPOCH)
    if query is None or epoch is None:
        raise UserError("Spark does not name the query and epoch of this task: use foreachBatch")
    return f"{query}-{epoch}"
