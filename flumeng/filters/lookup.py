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
from flumeng.events.lazy_batch import LazyBatch
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


def _handed_over(spark: SparkSession, on: tuple[str, ...], table: pa.Table) -> Broadcast[Directory]:
    return spark.sparkContext.broadcast(Directory(on, table))


def _taken_back(directory: Broadcast[Directory]) -> None:
    """Delete a broadcast variable, which Spark otherwise keeps on disk."""
    try:
        directory.destroy()
    except (Py4JError, OSError) as error:
        log.warning("an unused lookup table stays in Spark until the collector ends: %s", error)


@dataclass(frozen=True)
class Directory:
    """A lookup table with unique keys. A key of several columns is combined to one number."""

    on: tuple[str, ...]
    table: pa.Table

    def rows_of(self, events: pa.Table) -> pa.ChunkedArray:
        numbers = None
        for name, values in zip(self.on, self._values, strict=True):
            keys = events[name]
            if keys.type != values.type:
                keys = keys.cast(values.type)
            indices = pc.index_in(keys, value_set=values, skip_nulls=True).cast(pa.int64())
            numbers = indices if numbers is None else _together(numbers, indices, len(values))
        if len(self.on) == 1:
            return numbers
        return pc.index_in(numbers, value_set=self._keys, skip_nulls=True)

    @cached_property
    def _values(self) -> list[pa.Array]:
        """The values of each key column: of a single one in row order, else distinct ones."""
        columns = [self.table[name].combine_chunks() for name in self.on]
        columns = [c.cast(pa.int64()) if pa.types.is_integer(c.type) else c for c in columns]
        return columns if len(columns) == 1 else [pc.unique(column) for column in columns]

    @cached_property
    def _keys(self) -> pa.Array:
        numbers = None
        for name, values in zip(self.on, self._values, strict=True):
            indices = pc.index_in(self.table[name].cast(values.type), value_set=values)
            indices = pc.if_else(pc.is_valid(self.table[name]), indices.cast(pa.int64()), None)
            numbers = indices if numbers is None else _together(numbers, indices, len(values))
        return pa.chunked_array(numbers).combine_chunks()


def _together(numbers: pa.Array, more: pa.Array, count: int) -> pa.Array:
    return pc.add(pc.multiply(numbers, pa.scalar(max(count, 1), pa.int64())), more)


@dataclass(frozen=True)
class LookupStage:
    """Looks up events in ``directory``, a broadcast variable once the table is loaded. When there
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
