"""Reports of stages whose rows go on into Spark SQL, so that no row can carry them to the driver.

With a driver of our own they come through one accumulator of the session: Spark never forgets an
accumulator. A task that Spark repeats replaces its own reports. Spark Connect has no accumulators:
there each task ends with a row for its reports, and Spark keeps the rows until they are read.
"""

from __future__ import annotations

import itertools
import pickle
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema

from flumeng.agent.collector.sealed_stage import Pickled, SealedStage
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reports import Reports
from flumeng.events.lazy_batch import Functions, RunParameters, Stage

Key = tuple[int, int]
"""Number of the function of stages, and of the partition."""
Runs = dict[str, dict[Key, Reports]]
REPORTS = "__flumeng_reports"
_numbers = itertools.count()


class StageReports(Functions, Protocol):
    """Runs functions of Arrow stages in Spark, and collects their reports."""

    def take(self, run: str) -> Reports:
        """Return the reports of a run that has ended, once."""

    def release(self, run: str) -> None:
        """Forget a run; called once for each plan, also for a failed or untried one."""


class Newest(AccumulatorParam[Runs]):
    """Reports by run, function of stages and partition. The newest ones replace those before."""

    def zero(self, value: Runs) -> Runs:
        del value
        return {}

    def addInPlace(self, value1: Runs, value2: Runs) -> Runs:  # noqa: N802  # pyspark's
        for run, of in value2.items():
            value1.setdefault(run, {}).update(of)
        return value1


@cache
def _accumulator(session: SparkSession) -> Accumulator[Runs]:
    return session.sparkContext.accumulator({}, Newest())


class AccumulatedReports:
    """``StageReports`` through the accumulator, for all plans. ``sealed``: None if each batch needs
    a plan of its own."""

    def __init__(self, session: SparkSession, sealed: SealedStage | None) -> None:
        self._context = session.sparkContext
        self._accumulator = _accumulator(session)
        self._pickled = pickle.dumps(self._accumulator)
        self._sealed = sealed
        self._whole: WeakKeyDictionary[DataFrame, dict[pa.Schema, DataFrame]] = WeakKeyDictionary()

    def rows(self, source: DataFrame, stage: Stage, schema: pa.Schema) -> DataFrame:
        sending = _Sending(stage, next(_numbers), self._pickled)
        return source.mapInArrow(sending, from_arrow_schema(schema, prefer_timestamp_ntz=False))

    def results(
        self, source: DataFrame, stage: Stage, schema: pa.Schema, *, reusable: bool
    ) -> list[Row]:
        sealed = self._sealed
        if sealed is None or not reusable or (pickled := Pickled.of(stage)).broadcasts:
            return self.rows(source, stage, schema).collect()
        plans = self._whole.setdefault(source, {})
        if schema not in plans:
            plans[schema] = self.rows(source, sealed, schema)
        with sealed.given(self._context, pickled.stage):
            return plans[schema].collect()

    def take(self, run: str) -> Reports:
        return _sum(self._accumulator.value.pop(run, {}).values())

    def release(self, run: str) -> None:
        self._accumulator.value.pop(run, None)


@dataclass(frozen=True)
class _Sending:
    stage: Stage
    number: int
    accumulator: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with reports.collecting() as made:
            yield from self.stage(batches)
        context = TaskContext.get()
        assert context is not None
        accumulator: Any = pickle.loads(self.accumulator)  # it comes from our own driver
        key = self.number, context.partitionId()
        accumulator.add({RunParameters.of_this_task().run: {key: made}})


class ReportRows:
    """``StageReports`` as rows, for one plan. Spark identifies cached rows by their plan, for all
    sessions of a server, so each function of stages has a name of its own."""

    def __init__(self) -> None:
        self._cached: list[DataFrame] = []
        self._made: list[bytes] = []

    def rows(self, source: DataFrame, stage: Stage, schema: pa.Schema) -> DataFrame:
        cached = _with_reports(source, stage, schema).persist()
        self._cached.append(cached)
        columns = [col(f"`{name}`") for name in schema.names]
        return cached.where(col(REPORTS).isNull()).select(*columns)

    def results(
        self, source: DataFrame, stage: Stage, schema: pa.Schema, *, reusable: bool
    ) -> list[Row]:
        del reusable
        rows = _with_reports(source, stage, schema).collect()
        self._made += [row[REPORTS] for row in rows if row[REPORTS] is not None]
        return [
            Row(**{name: row[name] for name in schema.names})
            for row in rows
            if row[REPORTS] is None
        ]

    def take(self, run: str) -> Reports:
        del run
        made, self._made = self._made, []
        if self._cached:
            left = (rows.where(col(REPORTS).isNotNull()).select(REPORTS) for rows in self._cached)
            made += [row[REPORTS] for row in reduce(DataFrame.unionAll, left).collect()]
        return _sum(pickle.loads(pickled) for pickled in made)  # they come from our own executors

    def release(self, run: str) -> None:
        del run
        for rows in reversed(self._cached):
            rows.unpersist()
        self._cached.clear()


def _with_reports(source: DataFrame, stage: Stage, schema: pa.Schema) -> DataFrame:
    wide = schema.append(pa.field(REPORTS, pa.binary()))
    function = _Reporting(stage, wide, uuid.uuid4().hex)
    return source.mapInArrow(function, from_arrow_schema(wide, prefer_timestamp_ntz=False))


@dataclass(frozen=True)
class _Reporting:
    """Adds a column to the rows of ``stage``, null but in a last row, which has the reports."""

    stage: Stage
    schema: pa.Schema
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with reports.collecting() as made:
            for batch in self.stage(batches):
                column = pa.nulls(batch.num_rows, pa.binary())
                yield pa.RecordBatch.from_arrays([*batch.columns, column], self.schema.names)
        last = [pa.array([_blank(field)], field.type) for field in self.schema][:-1]
        column = pa.array([pickle.dumps(made)], pa.binary())
        yield pa.RecordBatch.from_arrays([*last, column], self.schema.names)


def _blank(field: pa.Field) -> Any:
    """Return a value of the field, for a row that no one reads."""
    kind = field.type
    if field.nullable or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {inner.name: _blank(inner) for inner in kind}
    if pa.types.is_nested(kind):
        return []
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return b""
    return False if pa.types.is_boolean(kind) else 0


def _sum(made: Iterable[Reports]) -> Reports:
    total = Reports()
    for of in made:
        total.add(of)
    return total
