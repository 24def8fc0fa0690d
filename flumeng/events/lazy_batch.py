"""A lazy batch: events with the filters and sinks that are to process them, before anything runs.

A batch is the numbers of its splits, or a Spark DataFrame, followed by pending Arrow stages.
Adjacent stages are fused into one Python stage, so events cross to the JVM only around Spark SQL.
Batches are immutable: several sinks can continue from the same one.
"""

from __future__ import annotations

import base64
import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from flumeng.events import identity
from flumeng.platform.errors import FlumengError
from flumeng.platform.scrubbing import raising_no_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Transforms record batches of a Spark partition in an executor. A picklable class or function."""
Action: TypeAlias = "Callable[[DataFrame], None]"
"""Called with the batch's rows in the driver, in the thread that calls ``collect``."""
Session: TypeAlias = "SparkSession | Callable[[], SparkSession]"
"""A session, or a function that returns one and may have to start it."""


class Functions(Protocol):
    """Runs functions of Arrow stages in Spark; each yields batches of ``schema``."""

    def rows(self, source: DataFrame, stage: Stage, schema: pa.Schema) -> DataFrame:
        """Return the rows of ``stage``, for Spark SQL."""

    def results(
        self, source: DataFrame, stage: Stage, schema: pa.Schema, *, reusable: bool
    ) -> list[Row]:
        """Run ``stage``, and return its rows. ``reusable``: one plan may serve all batches with
        this ``source``, since no row leaves its partition: else Spark keeps what it has moved."""


@dataclass(frozen=True)
class LazyBatch:
    """A batch and its stages. ``pending``: those after ``source``, which is None when they start
    from the numbers of the splits. ``schema``: of the output. ``action``: the end, if any. Unless
    ``shuffled``, each Spark partition has the rows of one split, also when repeated. ``bound``:
    the value of the ``Parameter``. ``large_rows``: the session accepts rows of any size.
    ``functions``: what runs Arrow stages in Spark; None for nothing but the stages."""

    session: Session
    splits: int
    source: DataFrame | None
    pending: tuple[Stage, ...]
    schema: pa.Schema
    action: Action | None = None
    shuffled: bool = False
    bound: tuple[Any, ...] | None = None
    large_rows: bool = False
    functions: Functions | None = None

    @classmethod
    def of_splits(cls, session: Session, splits: int, stage: Stage, schema: pa.Schema) -> LazyBatch:
        """Return a batch that runs ``stage`` in a Spark task for each of the ``splits`` numbers."""
        return cls(session, splits, None, (stage,), schema)

    @property
    def spark(self) -> SparkSession:
        """The session. Its start may take seconds, so it is used only where Spark is needed."""
        return self.session() if callable(self.session) else self.session

    @property
    def in_arrow(self) -> bool:
        """Whether the last stage is Arrow, so that a further one needs no transfer from the JVM."""
        return self.source is None or bool(self.pending)

    def beginning(self, schema: pa.Schema) -> LazyBatch:
        """Return a batch without stages, to determine the stages that filters would add."""
        return replace(self, source=None, pending=(), schema=schema)

    def without_identity(self) -> LazyBatch:
        if not identity.present(self.schema):
            return self
        return self.arrow(_strip, identity.without(self.schema))

    def arrow(self, stage: Stage, schema: pa.Schema) -> LazyBatch:
        """Append ``stage``, which yields batches of exactly ``schema``."""
        return replace(self, pending=(*self.pending, stage), schema=schema)

    def sql(self, transform: Callable[[DataFrame], DataFrame]) -> LazyBatch:
        return self.in_spark(transform(self.sql_input()), shuffled=False)

    def sql_input(self) -> DataFrame:
        """Return the rows for Spark SQL. Without ``large_rows``, they may raise LargeRowsError."""
        if self.large_rows or not self.in_arrow:
            return self.rows()
        return self.arrow(require_small_rows, self.schema).rows()

    def in_spark(self, rows: DataFrame, *, shuffled: bool) -> LazyBatch:
        """Continue with ``rows``, which Spark made of this batch and perhaps ``shuffled``."""
        schema = _arrow_schema_of(rows)
        shuffled |= self.shuffled
        return replace(self, source=rows, pending=(), schema=schema, shuffled=shuffled)

    def acted(self, action: Action) -> LazyBatch:
        """End with ``action``, which yields no rows; no stage can follow it."""
        return replace(self, action=action)

    def bind(self, *given: Any) -> LazyBatch:
        """Bind the value of the ``Parameter``. Spark's pages and event logs show it: no secrets."""
        return replace(self, bound=given)

    def cached(self) -> LazyBatch:
        """Return a batch that Spark computes once for several runs; ``release`` it afterwards."""
        return replace(self, source=self.rows().persist(), pending=())

    def release(self) -> None:
        if self.source is not None:
            self.source.unpersist()

    def after(self, shared: LazyBatch) -> tuple[Stage, ...] | None:
        """Return the Arrow stages after ``shared``; None when Spark SQL or an action follows it."""
        if self.action is not None or self.source is not shared.source:
            return None
        return self.pending[len(shared.pending) :]

    @property
    def all_arrow(self) -> Stage | None:
        """All stages fused, over split numbers; None when there is Spark SQL or an action."""
        if self.action is not None or self.source is not None:
            return None
        return Fused(self.pending)

    def rows(self) -> DataFrame:
        if self.source is not None and not self.pending:
            return self.source
        if self.functions is not None:
            return self.functions.rows(self._source(), Fused(self.pending), self.schema)
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  loads pyspark

        schema = from_arrow_schema(self.schema, prefer_timestamp_ntz=False)
        return self._source().mapInArrow(Fused(self.pending), schema)

    def _source(self) -> DataFrame:
        if self.source is None:
            return self.spark.range(0, self.splits, 1, self.splits)
        return self.source

    def collect(self, run: str = "") -> list[Row]:
        """Run the batch: call its action, or return its rows, which must be few per split. ``run``:
        the name of the run for its stages."""
        with run_parameters(self.spark, RunParameters(run, self.bound or ())):
            if self.action is not None:
                self.action(self.rows())
                return []
            if self.functions is not None and self.in_arrow:
                reusable = self.bound is not None and not self.shuffled
                stage = Fused(self.pending)
                return self.functions.results(self._source(), stage, self.schema, reusable=reusable)
            return self.rows().collect()


def _arrow_schema_of(rows: DataFrame) -> pa.Schema:
    """Return the schema with times in UTC; a Spark without that argument uses UTC anyway."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  loads pyspark

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(rows.schema, timezone="UTC")
    return to_arrow_schema(rows.schema)


ROWS_AT_ONCE, BYTES_AT_ONCE = 4096, 64 * 1024 * 1024
"""Most rows that Spark SQL returns to Python at once, and most bytes of so many rows."""


class LargeRowsError(FlumengError):
    """Rows for Spark SQL are too large: its limit on their number does not limit their bytes."""


def require_small_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > BYTES_AT_ONCE:
            raise LargeRowsError(f"{rows} rows for Spark SQL have {size} bytes, which is too many")
        if rows >= ROWS_AT_ONCE:
            rows = size = 0
        yield batch


PARAMETER = "flumeng.parameter"


class RunParameters(NamedTuple):
    """Parameters of one run of a batch, in a local property of its Spark jobs. Spark writes these
    properties into event logs, so stages, which may hold secrets, never go this way. ``run``: the
    run's name. ``bound``: the value of the ``Parameter``."""

    run: str
    bound: tuple[Any, ...]

    @classmethod
    def of_this_task(cls) -> RunParameters:
        from pyspark import TaskContext  # noqa: PLC0415  loads pyspark

        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(PARAMETER)
        assert text is not None, "the run of the batch has no parameters"
        given: RunParameters = pickle.loads(base64.b64decode(text))  # it comes from our own driver
        return given


@contextmanager
def run_parameters(session: SparkSession, given: RunParameters) -> Iterator[None]:
    """Give the jobs that this thread starts within the context these parameters. Spark Connect has
    none, and its plans serve one batch each."""
    if not is_classic(session):
        yield
        return
    context = session.sparkContext
    context.setLocalProperty(PARAMETER, base64.b64encode(pickle.dumps(given)).decode("ascii"))
    try:
        yield
    finally:
        context.setLocalProperty(PARAMETER, None)  # type: ignore[arg-type]


def is_classic(session: SparkSession) -> bool:
    """Return whether Spark's driver runs in this process, and not behind Spark Connect."""
    from pyspark.sql import SparkSession as Classic  # noqa: PLC0415  loads pyspark

    return isinstance(session, Classic)


@dataclass(frozen=True)
class Parameter:
    """Makes a stage of the batch's ``bound`` value when it runs: one plan serves many batches."""

    make: Callable[..., Stage]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.make(*RunParameters.of_this_task().bound)(batches)


def _strip(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return map(identity.strip, batches)


HELD_BYTES = 64 * 1024 * 1024
FAILED_SINK = "flumeng_sink"
"""Name of the attribute of an error that has the number of the sink that raised it."""
BRANCH_SCHEMA = pa.schema([pa.field("branch", pa.int32()), pa.field("rows", pa.binary())])


@dataclass(frozen=True)
class Branches:
    """Runs each of ``stages`` over the same batches, which are computed once. A stage with a
    sink's number yields one row of BRANCH_SCHEMA: its output as an Arrow stream, or no bytes. A
    stage without a number yields such rows itself. Input over HELD_BYTES is stored on disk."""

    stages: tuple[tuple[int | None, Stage], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with SpooledTemporaryFile(HELD_BYTES) as held:
            empty = not write_stream(batches, held)
            for number, stage in self.stages:
                held.seek(0)
                output = stage(iter(()) if empty else pa.ipc.open_stream(held))
                if number is None:
                    yield from output
                    continue
                rows = pa.BufferOutputStream()
                try:
                    write_stream(output, rows)
                except Exception as error:
                    setattr(error, FAILED_SINK, number)
                    raise
                row = {"branch": number, "rows": rows.getvalue().to_pybytes()}
                yield pa.RecordBatch.from_pylist([row], BRANCH_SCHEMA)


def write_stream(batches: Iterable[pa.RecordBatch], sink: Any) -> bool:
    """Write an Arrow stream. Without batches, write nothing and return False."""
    writer = None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return writer is not None


@dataclass(frozen=True)
class Fused:
    """Runs ``stages`` one after another; their errors contain no secrets."""

    stages: tuple[Stage, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for stage in self.stages:
            batches = stage(batches)
        return raising_no_secrets(batches)
