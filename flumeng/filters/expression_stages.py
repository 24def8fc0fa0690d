"""Arrow stages for the Spark SQL of filters, where Arrow computes it exactly as Spark does.
Unambiguous texts are read without Spark; Spark parses and analyses others."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import arrow_sql, arrow_text
from flumeng.filters.arrow_sql import FilterStage, ProjectStage


class Condition:
    """A condition in Spark SQL, translated once for each schema of events."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._stages: dict[pa.Schema, FilterStage | None] = {}

    def stage(self, batch: LazyBatch) -> FilterStage | None:
        """Return the condition's Arrow stage; None when Spark has to compute it. Raises UserError
        for a forbidden expression."""
        schema = batch.schema
        if schema not in self._stages:
            translated = arrow_text.condition(schema, self.text)
            if translated is None:
                _require_allowed(batch, [self.text])
                translated = arrow_sql.condition(batch.spark, schema, self.text)
            self._stages[schema] = translated
        return self._stages[schema]


def columns(batch: LazyBatch, texts: Sequence[str]) -> ProjectStage | None:
    """Return the stage that computes ``texts``; None and UserError as in ``Condition.stage``."""
    stage = arrow_text.columns(batch.schema, texts)
    if stage is not None:
        return stage
    _require_allowed(batch, texts)
    return arrow_sql.columns(batch.spark, batch.schema, texts)


def _require_allowed(batch: LazyBatch, texts: Sequence[str]) -> None:
    from flumeng.filters import spark_syntax  # noqa: PLC0415  loads pyspark

    spark_syntax.require_expressions(batch.spark, texts)
