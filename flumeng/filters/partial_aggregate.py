"""Sums up the events of each key and window of event time, as far as one split of a batch has them.

Nothing is kept from one split or batch to the next, so nothing can be lost or counted twice that is
not read twice; all values are such that those of several rows can be put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.filters import identity
from flumeng.filters.columns import gathered
from flumeng.filters.lazy_batch import LazyBatch
from flumeng.spec.filters.partial_aggregate import IDENTITY, PartialAggregate, Value, value

ROWS_AT_ONCE = 65_536
SECOND = 1_000_000
MERGED_BY = {"count": "sum", "sum": "sum", "min": "min", "max": "max", "first": "first"}


class PartialAggregateFilter:
    tables = ()
    identified = False

    def __init__(self, options: PartialAggregate) -> None:
        self._options = options

    def apply(self, batch: LazyBatch) -> LazyBatch:
        by = self._options.by
        names = batch.schema.names
        firsts = [name for name in (*IDENTITY, *identity.COLUMNS) if name in names]
        parts = {name: Value("first", name) for name in firsts if name not in by}
        parts |= {name: value(text) for name, text in self._options.values.items()}
        length = round(self._options.window_seconds * SECOND)
        stage = PartialAggregateStage(by, tuple(parts.items()), length)
        return batch.arrow(stage, stage.schema(batch.schema))


@dataclass(frozen=True)
class PartialAggregateStage:
    """``values`` of the rows of each key ``by`` and window of ``window_micros``, once a split."""

    by: tuple[str, ...]
    values: tuple[tuple[str, Value], ...]
    window_micros: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partial: pa.Table | None = None
        for events in gathered(batches, ROWS_AT_ONCE):
            more = self._summed(events)
            partial = more if partial is None else self._merged([partial, more])
        if partial is not None:
            yield from partial.combine_chunks().to_batches()

    def schema(self, events: pa.Schema) -> pa.Schema:
        """Of what it makes of ``events``."""
        return self._summed(events.empty_table()).schema

    @property
    def _keys(self) -> list[str]:
        return ["ts", *self.by]

    def _summed(self, events: pa.Table) -> pa.Table:
        micros = events["ts"].cast(pa.int64())
        begun = pc.subtract(micros, _modulo(micros, self.window_micros)).cast(events["ts"].type)
        place = events.schema.get_field_index("ts")
        columns = [self._column(events, of) for _, of in self.values]
        names = [f"v{number}" for number in range(len(columns))]
        windows = events.set_column(place, "ts", begun).select(self._keys)
        table = pa.Table.from_arrays([*windows.columns, *columns], [*self._keys, *names])
        return self._grouped(table, [of.function for _, of in self.values])

    def _merged(self, parts: Sequence[pa.Table]) -> pa.Table:
        table = pa.concat_tables(parts)
        names = [f"v{number}" for number in range(len(self.values))]
        return self._grouped(
            table.rename_columns([*self._keys, *names]),
            [MERGED_BY[of.function] for _, of in self.values],
        )

    def _grouped(self, table: pa.Table, functions: Sequence[str]) -> pa.Table:
        names = [f"v{number}" for number in range(len(functions))]
        wanted = [
            (name, function, _OPTIONS.get(function))
            for name, function in zip(names, functions, strict=True)
        ]
        found = table.group_by(self._keys, use_threads=False).aggregate(wanted)
        chosen = found.select([*self._keys, *(f"{name}_{how}" for name, how, _ in wanted)])
        return chosen.rename_columns([*self._keys, *(name for name, _ in self.values)])

    def _column(self, events: pa.Table, of: Value) -> pa.ChunkedArray:
        if of.column is None:
            return pa.chunked_array([pa.repeat(pa.scalar(1, pa.int8()), len(events))])
        return events[of.column]


_OPTIONS = {"first": pc.ScalarAggregateOptions(skip_nulls=False)}


def _modulo(micros: pa.ChunkedArray, length: int) -> pa.ChunkedArray:
    """How far into its window each moment is, also before 1970."""
    rest = pc.subtract(micros, pc.multiply(pc.divide(micros, length), length))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, length), rest)
