"""The filter ``aggregate``: aggregates the events of each key and window in a split. The results of
several splits can be merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events import identity
from flumeng.events.columns import gathered
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import histogram
from flumeng.filters.contract import Filter
from flumeng.filters.key_counts import groups
from flumeng.filters.marks import Marks
from flumeng.filters.options.aggregate import IDENTITY, Aggregate, Value, value

ROWS_AT_ONCE = 65_536
SECOND = 1_000_000
CONDITION = "_flumeng_condition_"
BUCKET = "_flumeng_bucket"
MADE = "_flumeng_made_"
MERGED_BY = {"count": "sum", "sum": "sum", "min": "min", "max": "max", "first": "first"}


class AggregateFilter(Filter):
    def __init__(self, options: Aggregate) -> None:
        self._options = options
        self._values = {name: value(text) for name, text in options.values.items()}
        conditions: dict[str, str] = {}
        for name, of in self._values.items():
            if of.function == "count_if" and of.argument is not None:
                column = f"{CONDITION}{len(conditions)}"
                conditions[column] = of.argument
                self._values[name] = replace(of, argument=column)
        self._conditions = Marks(conditions)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        by = self._options.by
        names = batch.schema.names
        firsts = [name for name in (*IDENTITY, *identity.COLUMNS) if name in names]
        parts = {name: Value("first", name) for name in firsts if name not in by}
        length = round(self._options.window_seconds * SECOND)
        stage = AggregateStage(by, tuple({**parts, **self._values}.items()), length)
        marked = self._conditions.mark(batch)
        return marked.arrow(stage, stage.schema(marked.schema))


@dataclass(frozen=True)
class AggregateStage:
    """Aggregates a split's events: ``values`` for each key in the columns ``by`` and window."""

    by: tuple[str, ...]
    values: tuple[tuple[str, Value], ...]
    window_micros: int
    rows_at_once: int = ROWS_AT_ONCE

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts: list[_Part] = []
        for events in gathered(batches, self.rows_at_once):
            parts.append(self._summed(events))
            while len(parts) > 1 and parts[-2].rows <= 2 * parts[-1].rows:
                parts[-2:] = [_Part.merged(parts[-2:])]
        if parts:
            yield from self._rows(_Part.merged(parts)).combine_chunks().to_batches()

    def schema(self, events: pa.Schema) -> pa.Schema:
        return self._rows(self._summed(events.empty_table())).schema

    def _summed(self, events: pa.Table) -> _Part:
        micros = events["ts"].cast(pa.int64())
        begun = pc.subtract(micros, _modulo(micros, self.window_micros)).cast(events["ts"].type)
        index = events.schema.get_field_index("ts")
        keys = events.set_column(index, "ts", begun).select(["ts", *self.by])
        plain = [of for _, of in self.values if of.function != "histogram"]
        plain_groups = _Groups.of(
            keys,
            [_column(events, of) for of in plain],
            ["count" if of.function == "count_if" else of.function for of in plain],
        )
        counted = [
            _Groups.of(
                keys.append_column(BUCKET, [histogram.buckets(events[of.argument])]),
                [_ones(events)],
                ["count"],
            )
            for _, of in self.values
            if of.function == "histogram"
        ]
        return _Part(plain_groups, tuple(counted))

    def _rows(self, part: _Part) -> pa.Table:
        plain = iter(part.plain.columns)
        counted = iter(part.counted)
        columns = [
            next(counted).histograms(part.plain.keys) if of.function == "histogram" else next(plain)
            for _, of in self.values
        ]
        keys = part.plain.keys
        names = [*keys.column_names, *(name for name, _ in self.values)]
        return pa.Table.from_arrays([*keys.columns, *columns], names)


@dataclass(frozen=True)
class _Groups:
    table: pa.Table
    functions: tuple[str, ...]

    @classmethod
    def of(
        cls, keys: pa.Table, columns: Sequence[pa.ChunkedArray], functions: Sequence[str]
    ) -> _Groups:
        names = [f"{MADE}{number}" for number in range(len(columns))]
        table = pa.Table.from_arrays([*keys.columns, *columns], [*keys.column_names, *names])
        aggregations = [
            (name, how, _OPTIONS.get(how)) for name, how in zip(names, functions, strict=True)
        ]
        aggregated = table.group_by(keys.column_names, use_threads=False).aggregate(aggregations)
        made = [f"{name}_{how}" for name, how, _ in aggregations]
        chosen = aggregated.select([*keys.column_names, *made])
        return cls(chosen.rename_columns([*keys.column_names, *names]), tuple(functions))

    @property
    def keys(self) -> pa.Table:
        names = self.table.column_names
        return self.table.select(names[: len(names) - len(self.functions)])

    @property
    def columns(self) -> Sequence[pa.ChunkedArray]:
        made: list[pa.ChunkedArray] = self.table.columns
        return made[len(made) - len(self.functions) :]

    @classmethod
    def merged(cls, parts: Sequence[_Groups]) -> _Groups:
        functions = parts[0].functions
        table = cls(pa.concat_tables(part.table for part in parts), functions)
        again = cls.of(table.keys, table.columns, [MERGED_BY[how] for how in functions])
        return cls(again.table, functions)

    def histograms(self, keys: pa.Table) -> pa.StructArray:
        """Return a histogram for each row of ``keys``, built from the counts per key and bucket."""
        both = pa.concat_tables([keys, self.table.select(keys.column_names)]).combine_chunks()
        first, group = groups([column.combine_chunks() for column in both.columns])
        row_of = np.empty(len(first), np.int64)
        row_of[group[: len(keys)]] = np.arange(len(keys))
        buckets, (counts,) = self.table[BUCKET].combine_chunks(), self.columns
        return histogram.histograms(row_of[group[len(keys) :]], buckets, counts, len(keys))


@dataclass(frozen=True)
class _Part:
    """Partial aggregates; ``counted`` has the counts per key and bucket of each histogram."""

    plain: _Groups
    counted: tuple[_Groups, ...]

    @property
    def rows(self) -> int:
        return sum(groups.table.num_rows for groups in (self.plain, *self.counted))

    @classmethod
    def merged(cls, parts: Sequence[_Part]) -> _Part:
        if len(parts) == 1:
            return parts[0]
        counted = zip(*(part.counted for part in parts), strict=True)
        return cls(
            _Groups.merged([part.plain for part in parts]), tuple(map(_Groups.merged, counted))
        )


_OPTIONS = {"first": pc.ScalarAggregateOptions(skip_nulls=False)}


def _column(events: pa.Table, of: Value) -> pa.ChunkedArray:
    """Return the argument column of a function; a condition that is not true becomes null."""
    if of.argument is None:
        return _ones(events)
    column = events[of.argument]
    return pc.if_else(column, True, None) if of.function == "count_if" else column


def _ones(events: pa.Table) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(1, pa.int8()), len(events))])


def _modulo(micros: pa.ChunkedArray, length: int) -> pa.ChunkedArray:
    """Return the offset of each time within its window, also for times before 1970."""
    rest = pc.subtract(micros, pc.multiply(pc.divide(micros, length), length))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, length), rest)
