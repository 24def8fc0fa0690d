"""Trial sinks: print the first events of each batch to standard error, or write nothing.
Unprintable characters of untrusted events are escaped, so that none controls the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.console.options import Console, Noop
from flumeng.events.lazy_batch import LazyBatch

LINES_PER_BATCH = 20
LINE_CHARACTERS = 2_000
SHOWN_SCHEMA = pa.schema([pa.field("lines", pa.list_(pa.string())), pa.field("events", pa.int64())])
COUNT_SCHEMA = pa.schema([pa.field("events", pa.int64())])


class NoopSink:
    roots = ()
    identified = writes_at_once = False

    def __init__(self, _options: Console | Noop, _task: TaskRevision) -> None:
        """Accept the arguments of every sink; there is nothing to set."""

    def stage(self, batch: LazyBatch, _attempt: Attempt) -> LazyBatch:
        return batch.arrow(count, COUNT_SCHEMA)

    def written(self, rows: Sequence[Row]) -> Written:
        return Written(sum(row["events"] for row in rows))


class ConsoleSink(NoopSink):
    def stage(self, batch: LazyBatch, _attempt: Attempt) -> LazyBatch:
        return batch.arrow(show, SHOWN_SCHEMA)

    def written(self, rows: Sequence[Row]) -> Written:
        events = sum(row["events"] for row in rows)
        lines = [line for row in rows for line in row["lines"]][:LINES_PER_BATCH]
        if events > len(lines):
            lines.append(f"... and {events - len(lines)} more")
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
        return Written(events)


def show(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row for a split: its first events as lines of text, and the number of events."""
    lines: list[str] = []
    events = 0
    for batch in batches:
        missing = LINES_PER_BATCH - len(lines)
        lines += [render(event) for event in _events(batch.slice(0, missing))]
        events += batch.num_rows
    columns = [pa.array([lines], pa.list_(pa.string())), pa.array([events], pa.int64())]
    yield pa.RecordBatch.from_arrays(columns, schema=SHOWN_SCHEMA)


def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row for a split: the number of its events."""
    events = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([events], pa.int64())], schema=COUNT_SCHEMA)


def render(event: dict[str, Any]) -> str:
    """Return an event as printable JSON in one line, without nulls, of up to LINE_CHARACTERS."""
    shown = {name: _plain(value) for name, value in event.items() if value is not None}
    text = json.dumps(shown, ensure_ascii=False, default=str)
    if len(text) > LINE_CHARACTERS:
        text = text[:LINE_CHARACTERS] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _events(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = [_values(column) for column in batch.columns]
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def _values(column: pa.Array) -> list[Any]:
    """Return a column's values. If one is a time outside of Python's years 1 to 9999, all values
    become texts; in a nested column, the same text."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        if pa.types.is_nested(column.type):
            return ["a time outside of the years 1 to 9999"] * len(column)
        return list(column.cast(pa.string()).to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) and all(isinstance(item, tuple) for item in value):
        return dict(value)
    return value
