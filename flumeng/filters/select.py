"""Chooses and computes columns with expressions in Spark SQL; all others are dropped."""

from __future__ import annotations

import pyarrow as pa

from flumeng.filters import arrow_sql
from flumeng.filters.lazy_batch import Frame
from flumeng.spec.filters import Select


class SelectFilter:
    def __init__(self, options: Select) -> None:
        self._expressions = options.expressions
        self._stages: dict[pa.Schema, arrow_sql.Pick | None] = {}

    def apply(self, frame: Frame) -> Frame:
        if frame.schema not in self._stages:
            spark = frame.source.sparkSession
            self._stages[frame.schema] = arrow_sql.columns(spark, frame.schema, self._expressions)
        stage = self._stages[frame.schema]
        if stage is not None:
            return frame.arrow(stage, stage.schema)
        return frame.sql(lambda rows: rows.selectExpr(*self._expressions))
