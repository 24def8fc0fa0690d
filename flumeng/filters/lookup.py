"""The filter ``lookup``: a hash join in Arrow, since Spark SQL copies events into the JVM."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from flumeng.events.columns import gathered
from flumeng.events.lazy_batch import LazyBatch, is_classic
from flumeng.filters import refreshed_table
from flumeng.filters.ddl import columns_of
from flumeng.filters.marks import WHEN, Marks
from flumeng.filters.options.lookup import Lookup
from flumeng.platform.errors import UserError

log = logging.getLogger(__name__)

KEPT = 2
"""Versions of a table kept in Spark: a batch may run while the next one is prepared."""
ROWS_AT_ONCE = 131_072
"""Events that are gathered for a lookup, which hashes the table's keys; fewer for small tables."""


class LookupFilter:
    identified = False

    def __init__(self, options: Lookup, condition: str | None = None) -> None:
        self._options = options
        self._marks = None if condition is None else Marks({WHEN: condition})
        self._columns = columns_of(options.table.schema)
        self._on = options.on
        self.tables: tuple[refreshed_table.RefreshedTable, ...] = ()
        self._used: deque[refreshed_table.Version] = deque(maxlen=KEPT)

    def under(self, condition: str) -> LookupFilter:
        return LookupFilter(self._options, condition)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        if not self.tables:
            self.tables = (
                refreshed_table.shared(batch.spark, self._options.table, self._columns, self._on),
            )
        self._require_fitting(batch.schema)
        added = [field for field in self._columns if field.name not in self._on]
        schema = pa.schema([*batch.schema, *added])
        if self._marks is not None:
            batch = self._marks.mark(batch)
        (table,) = self.tables
        version = table.version
        if version is None:
            empty = Directory(self._on, self._columns.empty_table())
            return batch.arrow(LookupStage(empty, self._options.how, schema), schema)
        self._used.append(version)
        directory = version.in_spark(partial(_handed_over, batch.spark, self._on), _taken_back)
        return batch.arrow(LookupStage(directory, self._options.how, schema), schema)

    def _require_fitting(self, events: pa.Schema) -> None:
        for field in self._columns:
            if field.name not in self._on and field.name in events.names:
                raise UserError(f"lookup: the column {field.name} exists already: rename it")
        for name in self._on:
            if name not in events.names:
                raise UserError(f"lookup: the events have no column {name}, which `on` names")


def _handed_over(
    spark: SparkSession, on: tuple[str, ...], table: pa.Table
) -> Directory | Broadcast[Directory]:
    """Return the table as a broadcast variable; for Spark Connect, which has none, the table."""
    directory = Directory(on, table)
    return spark.sparkContext.broadcast(directory) if is_classic(spark) else directory


def _taken_back(directory: Directory | Broadcast[Directory]) -> None:
    """Delete a broadcast variable, which Spark otherwise keeps on disk."""
    if isinstance(directory, Directory):
        return
    try:
        directory.destroy()
    except (Py4JError, OSError) as error:
        log.warning("an unused lookup table stays in Spark until the collector ends: %s", error)


@dataclass(frozen=True)
class Directory:
    """A lookup table with unique keys. A key of several columns is numbered column by column: each
    number is the place of the key so far among those of the table, so it stays small."""

    on: tuple[str, ...]
    table: pa.Table

    def rows_of(self, events: pa.Table) -> pa.ChunkedArray:
        places = None
        for name, values, keys in self._steps:
            column = events[name]
            if column.type != values.type:
                column = column.cast(values.type)
            places = _place(_number(places, column, values), keys)
        return places

    @cached_property
    def _steps(self) -> list[tuple[str, pa.Array, pa.Array | None]]:
        """Each key column with its values and, from the second one on, the numbers of keys up to
        it. Values of a single column, and the numbers of whole keys, are in row order."""
        steps: list[tuple[str, pa.Array, pa.Array | None]] = []
        places = None
        for name in self.on:
            column = self.table[name].combine_chunks()
            if pa.types.is_integer(column.type):
                column = column.cast(pa.int64())
            values = column if len(self.on) == 1 else pc.unique(column)
            numbers, keys = _number(places, column, values), None
            if steps:
                keys = numbers if len(steps) + 1 == len(self.on) else pc.unique(numbers)
            places = _place(numbers, keys)
            steps.append((name, values, keys))
        return steps


def _number(places: pa.Array | None, column: pa.Array, values: pa.Array) -> pa.Array:
    """Return the place of a column's value; with those of the columns before it one number."""
    own = _place(column, values)
    if places is None:
        return own
    return pc.add(pc.multiply(places.cast(pa.int64()), len(values)), own)


def _place(numbers: pa.Array, among: pa.Array | None) -> pa.Array:
    return numbers if among is None else pc.index_in(numbers, value_set=among, skip_nulls=True)


@dataclass(frozen=True)
class LookupStage:
    """Looks up events in ``directory``, most often a broadcast variable. When there
    is a column WHEN, only the events that it marks are looked up, and WHEN is dropped."""

    directory: Directory | Broadcast[Directory]
    how: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = self.directory
        directory = given if isinstance(given, Directory) else given.value
        for events in gathered(batches, min(len(directory.table), ROWS_AT_ONCE)):
            yield from self._looked_up(events, directory).to_batches()

    def _looked_up(self, events: pa.Table, directory: Directory) -> pa.Table:
        rows = directory.rows_of(events)
        kept = pc.is_valid(rows)
        if WHEN in events.schema.names:
            rows = pc.if_else(events[WHEN], rows, None)
            kept = pc.or_(pc.is_valid(rows), pc.invert(events[WHEN]))
            events = events.drop_columns([WHEN])
        if self.how == "inner":
            events, rows = events.filter(kept), rows.filter(kept)
        added = [
            directory.table[field.name].take(rows)
            for field in self.schema
            if field.name not in events.schema.names
        ]
        return pa.Table.from_arrays([*events.columns, *added], schema=self.schema)
