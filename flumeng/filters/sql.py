"""The filter ``sql``: a whole statement in Spark SQL over the events of a batch and further tables.

The statement sees one batch as the table ``events``. Only columns that it may use cross into the
JVM. Spark receives text generated from the checked statement. While Spark analyses it, its tables
are views of random names, so those of several flows do not conflict. Spark does not know the size
of a batch, so it broadcasts the further tables, always, and nothing else.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col, lit
from pyspark.sql.pandas.types import from_arrow_schema

from flumeng.config import sql_generator, sql_text, statement_shape, statements
from flumeng.config.statements import EVENTS
from flumeng.events import identity
from flumeng.events.columns import either
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import ddl, refreshed_table, spark_errors
from flumeng.filters.arrow_sql import Column, ProjectStage
from flumeng.filters.contract import Filter, Wrapping
from flumeng.filters.marks import WHEN, Marked, Marks, TakeStage, Unmarked
from flumeng.filters.options.sql import Sql
from flumeng.filters.refreshed_table import RefreshedTable
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class _Shape:
    """The columns that a statement may use, whether it moves rows out of their events' splits, and
    its text for Spark, a format string with a field for each table."""

    used: tuple[str, ...]
    shuffled: bool
    text: str


class SqlFilter:
    def __init__(self, options: Sql) -> None:
        self._query = options.query
        self._options = options.tables
        self._columns = {name: ddl.columns_of(it.schema) for name, it in options.tables.items()}
        self._tables: dict[str, RefreshedTable] = {}
        self._shapes: dict[pa.Schema, _Shape] = {}
        self.identified = any(name in options.query.lower() for name in identity.COLUMNS)

    def under(self, condition: str) -> ConditionalSql:
        return ConditionalSql(self, condition)

    @property
    def tables(self) -> tuple[RefreshedTable, ...]:
        return tuple(self._tables.values())

    def apply(self, batch: LazyBatch) -> LazyBatch:
        if batch.schema not in self._shapes:
            self._shapes[batch.schema] = self._shape(batch.schema)
        shape, spark = self._shapes[batch.schema], batch.spark
        if not self._tables:
            self._tables = {
                name: refreshed_table.shared(spark, self._options[name], columns)
                for name, columns in self._columns.items()
            }
        rows: dict[str, Any] = {_field(EVENTS): _events(batch, shape.used)}
        for name, table in self._tables.items():
            version = table.version
            rows[_field(name)] = (
                self._nothing(spark, name)
                if version is None
                else version.in_spark(_BySession).rows(spark)
            )
        with spark_errors.in_texts([(shape.text, self._query)], "sql"):
            return batch.in_spark(spark.sql(shape.text, **rows), shuffled=shape.shuffled)

    def _shape(self, schema: pa.Schema) -> _Shape:
        """Check the statement and return its shape. Raises UserError."""
        names = [name.lower() for name in self._columns]
        kinds = {name: ddl.kinds_of(columns) for name, columns in self._columns.items()}
        try:
            statements.check(self._query, ddl.kinds_of(identity.without(schema)), kinds)
            tree = sql_text.parse_query(self._query)
            fields = {name: _field(name) for name in (EVENTS, *names)}
            text = sql_generator.statement(tree, fields)
        except ValueError as error:
            raise UserError(f"sql: {error}") from error
        used = statement_shape.used(tree)
        kept = [name for name in schema.names if used is None or name.lower() in used]
        return _Shape(
            tuple(kept or schema.names[:1]), not statement_shape.in_place(tree, names), text
        )

    def _nothing(self, spark: SparkSession, name: str) -> DataFrame:
        """Return an empty table, for a batch that is planned but not run."""
        schema = from_arrow_schema(self._columns[name], prefer_timestamp_ntz=False)
        return broadcast(spark.createDataFrame([], schema))


def _field(table: str) -> str:
    """Return a table's field in the text for Spark; no parameter of Spark has such a name."""
    return f"table_{table.lower()}"


class ConditionalSql(Wrapping):
    """Applies ``statement`` to the events that meet ``condition``. Its result and the other events
    form one batch, in no order. Spark reads the events twice."""

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
    """Return the schema ``both`` without the identity columns that the statement drops."""
    lost = {*identity.COLUMNS} - {*through.names}
    return pa.schema([field for field in both if field.name not in lost])


def _fitted(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    fields = from_arrow_schema(schema, prefer_timestamp_ntz=False)
    return rows.select(
        *(
            (col(f"`{field.name}`") if field.name in rows.columns else lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in fields
        )
    )


class _BySession:
    """A table as one DataFrame in each session: a session does not see views of another's rows.
    Thread-safe."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._rows: dict[SparkSession, DataFrame] = {}
        self._lock = threading.Lock()

    def rows(self, spark: SparkSession) -> DataFrame:
        with self._lock:
            if spark not in self._rows:
                schema = from_arrow_schema(self._table.schema, prefer_timestamp_ntz=False)
                self._rows[spark] = broadcast(spark.createDataFrame(self._table, schema))
            return self._rows[spark]


def _events(batch: LazyBatch, used: tuple[str, ...]) -> DataFrame:
    """Return the events in Spark. If they come from Arrow, columns not ``used`` are null."""
    if not batch.in_arrow:
        return batch.rows().where(lit(True))  # with a view of cached rows, Spark drops their cache
    schema = pa.schema([batch.schema.field(name).with_nullable(True) for name in used])
    rows = batch.arrow(ProjectStage(tuple(map(Column, used)), schema), schema).sql_input()
    fields = from_arrow_schema(batch.schema, prefer_timestamp_ntz=False)
    return rows.select(
        *(
            col(f"`{field.name}`")
            if field.name in used
            else lit(None).cast(field.dataType).alias(field.name)
            for field in fields
        )
    )
