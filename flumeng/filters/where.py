"""The filter ``where``: keeps the events for which a condition is true (not null, not false)."""

from __future__ import annotations

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import Filter
from flumeng.filters.expression_stages import Condition
from flumeng.filters.options.where import Where


class WhereFilter(Filter):
    def __init__(self, options: Where) -> None:
        self.condition = Condition(options.expression)

    def under(self, condition: str) -> WhereFilter:
        """Return a filter that also keeps the events for which ``condition`` is not true."""
        text = self.condition.text
        return WhereFilter(Where(f"coalesce(NOT ({condition}), true) OR ({text})"))

    def apply(self, batch: LazyBatch) -> LazyBatch:
        stage = self.condition.stage(batch)
        if stage is not None:
            return batch.arrow(stage, batch.schema)
        return batch.sql(lambda rows: rows.where(self.condition.text))
