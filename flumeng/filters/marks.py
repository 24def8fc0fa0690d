"""Boolean columns that mark the events for which a condition is true. A later stage drops them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import arrow_sql, spark_errors
from flumeng.filters.contract import EachBatch
from flumeng.filters.expression_stages import Condition

WHEN = "_flumeng_when"
"""The column that tells whether a filter applies to the event."""


class Marks:
    def __init__(self, conditions: Mapping[str, str]) -> None:
        self.conditions = {column: Condition(text) for column, text in conditions.items()}

    def mark(self, batch: LazyBatch) -> LazyBatch:
        """Add the columns, first those in Arrow, so events go through Spark SQL at most once."""
        stages = {column: of.stage(batch.schema) for column, of in self.conditions.items()}
        for column, stage in stages.items():
            if stage is not None:
                marked = batch.schema.append(pa.field(column, pa.bool_()))
                batch = batch.arrow(MarkStage(stage.condition, column), marked)
        others = [column for column, stage in stages.items() if stage is None]
        return self._marked_by_spark(batch, others) if others else batch

    def _marked_by_spark(self, batch: LazyBatch, columns: Sequence[str]) -> LazyBatch:
        from pyspark.sql import functions as F  # noqa: PLC0415, N812  loads pyspark

        texts = {column: self.conditions[column].for_spark(batch.schema) for column in columns}
        given = [(text, self.conditions[column].text) for column, text in texts.items()]
        marks = {n: F.coalesce(F.expr(text), F.lit(False)) for n, text in texts.items()}
        with spark_errors.in_texts(given, "when"):
            return batch.sql(lambda rows: rows.withColumns(marks))


@dataclass(frozen=True)
class MarkStage(EachBatch):
    """Adds a boolean ``column``: whether ``condition`` is true, not null and not false."""

    condition: arrow_sql.Call
    column: str

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column(self.column, pc.fill_null(self.condition.of(batch), False))


@dataclass(frozen=True)
class Marked:
    column: str

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.fill_null(batch[self.column], False)


@dataclass(frozen=True)
class Unmarked:
    columns: tuple[str, ...]

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.invert(reduce(pc.or_, (Marked(column).of(batch) for column in self.columns)))

    def __call__(self, batch: pa.RecordBatch) -> int:
        return int(pc.sum(self.of(batch)).as_py() or 0)


@dataclass(frozen=True)
class TakeStage:
    """Selects the events of ``which``, or all events when it is None, and drops the marks."""

    which: Marked | Unmarked | None
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            events = batch.select(list(self.columns))
            if self.which is None:
                yield events
                continue
            mask = self.which.of(batch)
            if pc.any(mask).as_py():
                yield events.filter(mask)
