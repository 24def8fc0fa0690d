"""Keeps the events for which a condition in Spark SQL is true (not null, not false)."""

from __future__ import annotations

import pyarrow as pa

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import arrow_sql, expression_stages
from flumeng.filters.options.where import Where


class WhereFilter:
    tables = ()
    identified = False

    def __init__(self, options: Where) -> None:
        self._condition = options.expression
        self._stages: dict[pa.Schema, arrow_sql.FilterStage | None] = {}

    def apply(self, batch: LazyBatch) -> LazyBatch:
        if batch.schema not in self._stages:
            self._stages[batch.schema] = expression_stages.condition(batch, self._condition)
        stage = self._stages[batch.schema]
        if stage is not None:
            return batch.arrow(stage, batch.schema)
        return batch.sql(lambda rows: rows.where(self._condition))
