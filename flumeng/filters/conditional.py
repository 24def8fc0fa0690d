"""Runs a filter only on the events for which a condition is true; others bypass it. A column that
it adds is null for the others, unless an earlier filter made the column. Rows keep their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.columns import either, fitted
from flumeng.events.lazy_batch import LazyBatch, Stage
from flumeng.filters.contract import Filter, Wrapping
from flumeng.filters.marks import WHEN, Marks
from flumeng.platform.errors import UserError

ROW = "_flumeng_row"


class ConditionalFilter(Wrapping):
    """Runs the filter ``inner`` in Arrow on the events that meet ``condition``. ``inner`` must keep
    unknown columns; it makes the columns ``again``, so it does not receive them."""

    def __init__(self, inner: Filter, condition: str, again: frozenset[str] = frozenset()) -> None:
        super().__init__(inner)
        self._again = again
        self._marks = Marks({WHEN: condition})

    def apply(self, batch: LazyBatch) -> LazyBatch:
        before = batch.schema
        given = pa.schema([field for field in before if field.name not in self._again])
        inner = self._inner.apply(batch.beginning(given.append(pa.field(ROW, pa.int64()))))
        stage = inner.all_arrow
        if stage is None:
            raise UserError("`when` is not supported for a filter that runs in Spark SQL")
        behind = either(before, inner.schema.remove(inner.schema.get_field_index(ROW)))
        return self._marks.mark(batch).arrow(
            ConditionalStage(stage, before, behind, self._again), behind
        )


@dataclass(frozen=True)
class ConditionalStage:
    """Runs ``inner`` on the events marked by WHEN, with row numbers in ROW; drops WHEN."""

    inner: Stage
    before: pa.Schema
    behind: pa.Schema
    again: frozenset[str] = frozenset()
    """Columns of ``before`` that ``inner`` makes itself, so it does not receive them."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            marks = batch[WHEN].to_numpy(zero_copy_only=False)
            events = batch.select(self.before.names)
            through = self._through(events, marks)
            if marks.all():
                yield from (fitted(each, self.behind) for each in through)
            else:
                yield self._merged(events, marks, through)

    def _through(
        self, events: pa.RecordBatch, marks: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> list[pa.RecordBatch]:
        rows = pa.array(np.arange(len(events)))
        given = [name for name in self.before.names if name not in self.again]
        chosen = events.select(given).append_column(ROW, rows)
        if not marks.all():
            chosen = chosen.filter(pa.array(marks))
        return list(self.inner(iter([chosen]))) if len(chosen) else []

    def _merged(
        self,
        events: pa.RecordBatch,
        marks: np.ndarray[tuple[int], np.dtype[np.bool_]],
        through: list[pa.RecordBatch],
    ) -> pa.RecordBatch:
        rest = events.append_column(ROW, pa.array(np.arange(len(events)))).filter(pa.array(~marks))
        if not through:
            return fitted(rest, self.behind)
        numbered = self.behind.append(rest.schema.field(ROW))
        tables = [pa.table(fitted(each, numbered)) for each in (*through, rest)]
        combined = pa.concat_tables(tables).combine_chunks()
        order = pc.sort_indices(combined, [(ROW, "ascending")])
        ordered = combined.take(order).select(self.behind.names)
        (merged,) = ordered.combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], self.behind)
        ]
        return merged
