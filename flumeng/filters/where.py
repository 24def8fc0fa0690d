"""Keeps the events for which a condition in Spark SQL is true (not null, not false)."""

from __future__ import annotations

import pyarrow as pa

from flumeng.filters import arrow_sql
from flumeng.filters.lazy_batch import Frame
from flumeng.spec.filters import Where


class WhereFilter:
    def __init__(self, options: Where) -> None:
        self._condition = options.expression
        self._stages: dict[pa.Schema, arrow_sql.Keep | None] = {}

    def apply(self, frame: Frame) -> Frame:
        if frame.schema not in self._stages:
            spark = frame.source.sparkSession
            self._stages[frame.schema] = arrow_sql.condition(spark, frame.schema, self._condition)
        stage = self._stages[frame.schema]
        if stage is not None:
            return frame.arrow(stage, frame.schema)
        return frame.sql(lambda rows: rows.where(self._condition))
