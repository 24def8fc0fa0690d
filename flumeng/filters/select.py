"""The filter ``select``: chooses and computes columns in Spark SQL; keeps the events' identity."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, the name that all of Spark's users know

from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import arrow_sql, arrow_text, expression_stages, spark_errors
from flumeng.filters.conditional import ROW, ConditionalFilter
from flumeng.filters.contract import Filter
from flumeng.filters.marks import WHEN, Marks
from flumeng.filters.options.select import Select

HIDDEN = (*identity.COLUMNS, ROW)
"""Columns that are always kept."""
CHOSEN = "_flumeng_chosen"


class SelectFilter(Filter):
    def __init__(self, options: Select) -> None:
        self._options = options
        self._stages: dict[pa.Schema, arrow_sql.ProjectStage | None] = {}

    def under(self, condition: str) -> ConditionalSelect:
        return ConditionalSelect(self, condition)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        stage = self.stage(batch)
        if stage is not None:
            return batch.arrow(stage, stage.schema)
        texts = self.for_spark(batch.schema)
        with spark_errors.in_texts(texts, "select"):
            return batch.sql(lambda rows: rows.selectExpr(*(text for text, _ in texts)))

    def stage(self, batch: LazyBatch) -> arrow_sql.ProjectStage | None:
        """Return the Arrow stage; None when Spark has to compute it."""
        if batch.schema not in self._stages:
            expressions = self.expressions(batch.schema)
            self._stages[batch.schema] = arrow_text.columns(batch.schema, expressions)
        return self._stages[batch.schema]

    def for_spark(self, schema: pa.Schema) -> list[tuple[str, str]]:
        """Return each expression as text for Spark, and as it is given. Raises UserError."""
        given = self.expressions(schema)
        return [(expression_stages.for_spark(schema, text), text) for text in given]

    def expressions(self, columns: pa.Schema) -> tuple[str, ...]:
        hidden = [name for name in columns.names if name in HIDDEN]
        given = [f"`{name}`" for name in columns.names if name not in hidden]
        chosen = (given if text.strip() == "*" else [text] for text in self._options.expressions)
        return (*(text for texts in chosen for text in texts), *hidden)


class ConditionalSelect:
    """Applies ``select`` to the events that meet ``condition``; other events keep their columns."""

    tables = ()
    identified = False

    def __init__(self, select: SelectFilter, condition: str) -> None:
        self._select = select
        self._marks = Marks({WHEN: condition})
        self._in_arrow = ConditionalFilter(select, condition)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        numbered = batch.schema.append(pa.field(ROW, pa.int64()))
        if self._select.stage(batch.beginning(numbered)) is not None:
            return self._in_arrow.apply(batch)
        texts = self._select.for_spark(batch.schema)
        with spark_errors.in_texts(texts, "select"):
            marked = self._marks.mark(batch)
            return marked.sql(lambda rows: _either(rows, tuple(text for text, _ in texts)))


def _either(marked: DataFrame, expressions: tuple[str, ...]) -> DataFrame:
    """Return ``expressions`` where WHEN is true, else the old columns; missing ones are null."""
    names = marked.selectExpr(*expressions).columns
    chosen = F.struct(*(F.expr(text).alias(f"c{n}") for n, text in enumerate(expressions)))
    rows = marked.withColumn(CHOSEN, F.when(F.col(WHEN), chosen))
    made = {name: F.col(f"{CHOSEN}.c{number}") for number, name in enumerate(names)}
    passing = [name for name in marked.columns if name != WHEN]

    def column(name: str) -> Column:
        if name in HIDDEN:
            return F.col(name)
        if name not in passing:
            return made[name].alias(name)
        old = F.col(f"`{name}`")
        new = made.get(name, F.lit(None))
        return F.when(F.col(WHEN), new).otherwise(old).alias(name)

    return rows.select(*map(column, dict.fromkeys([*passing, *names])))
