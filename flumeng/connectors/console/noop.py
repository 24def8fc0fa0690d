"""Computes everything and writes nothing: to measure, and to try a flow's filters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.console.options import Noop
from flumeng.events.lazy_batch import LazyBatch

COUNT_SCHEMA = pa.schema([pa.field("events", pa.int64())])


class NoopSink:
    roots = ()
    identified = writes_at_once = False

    def __init__(self, _options: Noop, _task: TaskRevision) -> None:
        """There is nothing to set."""

    def stage(self, batch: LazyBatch, _attempt: Attempt) -> LazyBatch:
        return batch.arrow(count, COUNT_SCHEMA)

    def written(self, rows: Sequence[Row]) -> Written:
        return Written(sum(row["events"] for row in rows))


def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row a split: how many events came."""
    events = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([events], pa.int64())], schema=COUNT_SCHEMA)
