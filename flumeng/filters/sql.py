"""The filter ``sql``: a whole statement in Spark SQL over the events of a batch and further tables.

The statement sees one batch as the table ``events``. Only columns that it uses cross into the JVM.
While Spark analyses a statement, its tables are views in a separate session, for one statement at a
time. So tables of the same name in other flows do not conflict, and no view remains. Spark does not
know the size of a batch, so it broadcasts the further tables, always, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col, lit
from pyspark.sql.pandas.types import from_arrow_schema

from flumeng.config.statements import EVENTS
from flumeng.events import identity
from flumeng.events.columns import either
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import ddl, refreshed_table, spark_syntax
from flumeng.filters.arrow_sql import Column, ProjectStage, class_name, items
from flumeng.filters.contract import Filter, Wrapping
from flumeng.filters.marks import WHEN, Marked, Marks, TakeStage, Unmarked
from flumeng.filters.options.sql import Sql
from flumeng.filters.refreshed_table import RefreshedTable
from flumeng.platform.errors import UserError

CROSSINGS = ("MapInArrow", "PythonMapInArrow")
REFERRING = (
    "Aggregate Filter GlobalLimit Join LocalLimit LocalRelation LogicalRDD MapInArrow Offset "
    "Project PythonMapInArrow Range ResolvedHint Sort Window WindowGroupLimit"
)
"""Logical plan nodes that refer to the columns they use, and pass others through unchanged."""
IN_PLACE = (
    "BroadcastHashJoin BroadcastNestedLoopJoin Filter InputAdapter MapInArrow Project "
    "PythonMapInArrow Range WholeStageCodegen"
)
"""Physical plan nodes that leave each row in the partition of its event."""


@dataclass(frozen=True)
class _Shape:
    """The columns that a statement uses, and whether it moves rows out of their events' splits."""

    used: tuple[str, ...]
    shuffled: bool
    repeats: bool


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
        if not self._tables:
            self._tables = {
                name: refreshed_table.shared(batch.spark, self._options[name], columns)
                for name, columns in self._columns.items()
            }
        if batch.schema not in self._shapes:
            self._shapes[batch.schema] = self._shape(batch)
        shape = self._shapes[batch.schema]
        events = _events(batch, shape.used)
        versions = {name: table.version for name, table in self._tables.items()}
        tables = {
            name: self._nothing(batch.spark, name)
            if version is None
            else version.in_spark(partial(_in_spark, batch.spark))
            for name, version in versions.items()
        }
        rows = self._result(batch.spark, events, tables)
        return batch.in_spark(rows, shuffled=shape.shuffled, repeats=shape.repeats)

    def _shape(self, batch: LazyBatch) -> _Shape:
        """Return the shape of the statement from Spark's plan, without running the statement."""
        spark = batch.spark
        readable = [EVENTS, *(name.lower() for name in self._columns)]
        spark_syntax.require_statement(spark, self._query, readable)
        columns = pa.schema([field.with_nullable(True) for field in batch.schema])
        events = batch.beginning(columns).rows()
        tables = {name: self._nothing(spark, name) for name in self._columns}
        result = self._result(spark, events, tables)
        twice = sorted({name for name in result.columns if result.columns.count(name) > 1})
        if twice:
            raise UserError(f"sql: two columns are called {twice[0]}: rename one")
        execution = result._jdf.queryExecution()
        used = _used(execution.optimizedPlan())
        names = batch.schema.names
        kept = [name for name in names if used is None or name in used] or names[:1]
        repeats = bool(execution.optimizedPlan().subqueriesAll().isEmpty())
        return _Shape(tuple(kept), not _in_place(execution.executedPlan()), repeats)

    def _nothing(self, spark: SparkSession, name: str) -> DataFrame:
        """Return an empty table, whose number of rows is unknown to Spark."""
        schema = from_arrow_schema(self._columns[name], prefer_timestamp_ntz=False)
        return broadcast(spark.createDataFrame(spark.sparkContext.emptyRDD(), schema))

    def _result(
        self, spark: SparkSession, events: DataFrame, tables: Mapping[str, DataFrame]
    ) -> DataFrame:
        room = _room(spark)
        with _one_at_a_time, ExitStack() as views:
            for name, rows in {EVENTS: events, **tables}.items():
                _within(room, rows).createTempView(name)
                views.callback(room.catalog.dropTempView, name)
            return _within(spark, room.sql(self._query))


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


_one_at_a_time = threading.Lock()


@cache
def _room(spark: SparkSession) -> SparkSession:
    """Return a session for the tables of one statement at a time."""
    return spark.newSession()


def _within(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Return the same rows in another session of the same Spark."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    plan = rows._jdf.queryExecution().analyzed()
    dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return DataFrame(dataset, spark)


def _in_spark(spark: SparkSession, table: pa.Table) -> DataFrame:
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=False)
    return broadcast(spark.createDataFrame(table, schema))


def _events(batch: LazyBatch, used: tuple[str, ...]) -> DataFrame:
    """Return the events in Spark. If they come from Arrow, columns not ``used`` are null."""
    if not batch.in_arrow:
        return batch.rows()
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


def _used(plan: Any) -> set[str] | None:
    """Return the event columns that an optimised plan uses; None when it may use all of them."""
    nodes = list(_nodes(plan))
    if not plan.subqueriesAll().isEmpty() or any(
        class_name(it) not in REFERRING.split() for it in nodes
    ):
        return None
    read = {_id(column) for node in nodes for column in items(node.references().toSeq())}
    read |= {_id(column) for column in items(plan.output())}
    return {
        str(column.name())
        for node in nodes
        if class_name(node) in CROSSINGS
        for column in items(node.output())
        if _id(column) in read
    }


def _in_place(plan: Any) -> bool:
    """Whether a physical plan leaves each row in the partition of its event."""
    kind = class_name(plan)
    if kind == "AdaptiveSparkPlanExec":
        return _in_place(plan.initialPlan())
    if kind == "BroadcastExchangeExec":
        return not any(class_name(node).removesuffix("Exec") in CROSSINGS for node in _nodes(plan))
    return kind.removesuffix("Exec") in IN_PLACE.split() and all(
        map(_in_place, items(plan.children()))
    )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items(plan.children()):
        yield from _nodes(child)


def _id(column: Any) -> int:
    return int(column.exprId().id())
