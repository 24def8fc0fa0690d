"""A statement that is only for the events for which a condition is true.

What the statement makes of them and the events that pass it by are one batch again, in no order.
Spark reads the events once for each of the two.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, the name that all of Spark's users know
from pyspark.sql.pandas.types import from_arrow_schema

from flumeng.events import identity
from flumeng.events.columns import either
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import Filter, Wrapping
from flumeng.filters.marks import WHEN, Marked, Marks, TakeStage, Unmarked


class ConditionalSql(Wrapping):
    """``statement`` for the events for which ``condition`` is true."""

    def __init__(self, statement: Filter, condition: str) -> None:
        super().__init__(statement)
        self._marks = Marks({WHEN: condition})

    def apply(self, batch: LazyBatch) -> LazyBatch:
        marked = self._marks.mark(batch)
        names = tuple(batch.schema.names)
        chosen = marked.arrow(TakeStage(Marked(WHEN), names), batch.schema)
        others = marked.arrow(TakeStage(Unmarked((WHEN,)), names), batch.schema)
        through = self._inner.apply(chosen)
        schema = _without_lost(either(batch.schema, through.schema), through.schema)
        rows = _fitted(through.rows(), schema).unionAll(_fitted(others.sql_input(), schema))
        return through.in_spark(rows, shuffled=True)


def _without_lost(both: pa.Schema, through: pa.Schema) -> pa.Schema:
    """Rows of the statement have no identity that it leaves out."""
    lost = {*identity.COLUMNS} - {*through.names}
    return pa.schema([field for field in both if field.name not in lost])


def _fitted(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """The columns of ``schema``, null where there are none."""
    wanted = from_arrow_schema(schema, prefer_timestamp_ntz=False)
    return rows.select(
        *(
            (F.col(f"`{field.name}`") if field.name in rows.columns else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in wanted
        )
    )
