"""Which stage does what an expression of a filter says, when Arrow can do it.

A text that leaves no doubt is read without Spark, which may not even run; else its own parser says
what it reads, and its own analysis what that means.
"""

from __future__ import annotations

from collections.abc import Sequence

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import arrow_sql, arrow_text
from flumeng.filters.arrow_sql import FilterStage, ProjectStage


def condition(batch: LazyBatch, text: str) -> FilterStage | None:
    """A stage for the condition ``text`` over the events of ``batch``; None when it is Spark's.

    Raises UserError for what is not allowed.
    """
    found = arrow_text.condition(batch.schema, text)
    if found is not None:
        return found
    _require_allowed(batch, [text])
    return arrow_sql.condition(batch.spark, batch.schema, text)


def columns(batch: LazyBatch, texts: Sequence[str]) -> ProjectStage | None:
    """The same for the expressions of a list of columns."""
    found = arrow_text.columns(batch.schema, texts)
    if found is not None:
        return found
    _require_allowed(batch, texts)
    return arrow_sql.columns(batch.spark, batch.schema, texts)


def _require_allowed(batch: LazyBatch, texts: Sequence[str]) -> None:
    from flumeng.filters import spark_syntax  # noqa: PLC0415  loads pyspark

    spark_syntax.require_allowed(batch.spark, texts)
