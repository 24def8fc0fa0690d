"""The filter ``where``: keeps the events for which a condition is true (not null, not false)."""

from __future__ import annotations

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import spark_errors
from flumeng.filters.contract import Filter
from flumeng.filters.expression_stages import Condition
from flumeng.filters.options.where import Where


class WhereFilter(Filter):
    def __init__(self, options: Where, unless: str | None = None) -> None:
        self.condition = Condition(options.expression, unless)

    def under(self, condition: str) -> WhereFilter:
        """Return a filter that also keeps the events for which ``condition`` is not true."""
        return WhereFilter(Where(self.condition.text), unless=condition)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        stage = self.condition.stage(batch.schema)
        if stage is not None:
            return batch.arrow(stage, batch.schema)
        text = self.condition.for_spark(batch.schema)
        with spark_errors.in_texts([(text, self.condition.text)], "where"):
            return batch.sql(lambda rows: rows.where(text))
