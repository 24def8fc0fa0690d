"""Chooses and computes columns with expressions in Spark SQL; all others are dropped, but for the
identity of the events."""

from __future__ import annotations

import pyarrow as pa

from flumeng.filters import arrow_sql, expression_stages, identity
from flumeng.filters.lazy_batch import LazyBatch
from flumeng.spec.filters.select import Select


class SelectFilter:
    tables = ()
    identified = False

    def __init__(self, options: Select) -> None:
        self._expressions = options.expressions
        self._stages: dict[pa.Schema, arrow_sql.ProjectStage | None] = {}

    def apply(self, batch: LazyBatch) -> LazyBatch:
        kept = () if "*" in self._expressions else identity.present(batch.schema)
        expressions = (*self._expressions, *kept)
        if batch.schema not in self._stages:
            self._stages[batch.schema] = expression_stages.columns(batch, expressions)
        stage = self._stages[batch.schema]
        if stage is not None:
            return batch.arrow(stage, stage.schema)
        return batch.sql(lambda rows: rows.selectExpr(*expressions))
