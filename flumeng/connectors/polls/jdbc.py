"""Reads database rows through Spark; columns that Spark would round are read as texts. Spark's UI
shows only the statement. The database, the driver's socket and the Spark job have time limits."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DecimalType, StructField, StructType, TimestampNTZType

from flumeng.config.tables import Jdbc
from flumeng.connectors.polls.sql_options import SqlPollSource
from flumeng.connectors.polls.sql_poll import QueryResult
from flumeng.connectors.polls.sql_statements import DIALECTS
from flumeng.events import json_text
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import excerpt

POOL = "polls"
BATCH_BYTES = 2**20
LATE_SECONDS = 10
"""The driver's socket waits this much longer than the database's time limit; the Spark job may take
twice the limit and this."""
MOST_DIGITS = 38
"""Spark's largest decimal: a column of this precision may have more digits, which Spark rounds."""
TIME = "logical_time_type"
"""Spark's column metadata for a time of day, which it reads with milliseconds only."""
CUT = "flumeng_cut"
LATER = ("08", "40", "53", "57", "58", "55P03", "HYT")
"""SQL states to retry: connections, conflicts, resources, shutdown, disks, locks, time-outs."""
NEVER = ("57P04",)
"""SQL states not to retry: the database was dropped."""
MOST_CHARACTERS = 500
PACKAGES = {
    "postgresql": "org.postgresql:postgresql:42.7.4",
    "mysql": "com.mysql:mysql-connector-j:VERSION",
    "mariadb": "org.mariadb.jdbc:mariadb-java-client:VERSION",
    "sqlserver": "com.microsoft.sqlserver:mssql-jdbc:VERSION",
    "db2": "com.ibm.db2:jcc:VERSION",
}

_numbers = itertools.count(1)


class SparkJdbc:
    """A ``JdbcQuery`` through Spark, used by one thread."""

    def __init__(self, spark: SparkSession, options: SqlPollSource) -> None:
        """Prepare the session. Raises UserError for a missing secret."""
        self._context = spark.sparkContext
        self._session = spark.newSession()
        self._session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", options.fetch_rows)
        self._session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", BATCH_BYTES)
        self._database = options.database
        self._seconds = math.ceil(options.timeout_seconds)
        self._given = {
            **DIALECTS[self._database.kind].properties,
            **self._database.properties_within(self._seconds + LATE_SECONDS),
            "url": self._database.url,
            "driver": self._database.driver,
            "queryTimeout": str(self._seconds),
            "fetchsize": str(options.fetch_rows),
            "preferTimestampNTZ": "true",
        }
        if options.username is not None:
            self._given["user"] = options.username
        if options.password is not None:
            self._given["password"] = secrets.resolve(options.password)
        self._name = f"sql-poll-{next(_numbers)}"
        self._closed = threading.Event()

    def __call__(self, statement: str, most_bytes: int) -> QueryResult:
        self._context.setJobGroup(self._name, self._database.address, interruptOnCancel=True)
        self._context.setLocalProperty("spark.scheduler.pool", POOL)
        late = threading.Timer(2 * self._seconds + LATE_SECONDS, self._cancel)
        late.daemon = True
        late.start()
        try:
            self._require_open()
            rows, long = self._exact(statement)
            self._require_open()
            return _result(rows, long, most_bytes)
        except (Py4JError, PySparkException, pa.ArrowException, OSError) as error:
            self._require_open()
            raise _explained(error, self._database) from error
        finally:
            late.cancel()

    def close(self) -> None:
        """Cancel the Spark job; a query for a statement's columns ends by the driver's time-out."""
        self._closed.set()
        self._cancel()

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise UnavailableError("the poll was closed")

    def _cancel(self) -> None:
        self._context.cancelJobGroup(self._name)

    def _exact(self, statement: str) -> tuple[DataFrame, set[str]]:
        """Return the rows, and the names of numeric columns read as texts. Times without a zone are
        read as texts too: Spark would shift one that this host's zone skips."""
        rows = self._load(statement)
        long = {field.name for field in rows.schema if _is_long(field)}
        clocks = {field.name for field in rows.schema if field.metadata.get(TIME)}
        walls = {f.name for f in rows.schema if isinstance(f.dataType, TimestampNTZType)} - clocks
        texts = long | clocks | walls
        if not texts:
            return rows, long
        types = ", ".join(f"{_quoted(name)} STRING" for name in sorted(texts))
        read = self._load(statement, customSchema=types)
        columns = [
            read[_quoted(name)].cast(TimestampNTZType()).alias(name)
            if name in walls
            else read[_quoted(name)]
            for name in read.columns
        ]
        return read.select(*columns), long

    def _load(self, statement: str, **more: str) -> DataFrame:
        given = {**self._given, **more, "query": statement}
        return self._session.read.format("jdbc").options(**given).load()


@dataclass(frozen=True)
class UntilTooMuch:
    """Yields batches up to the one that exceeds ``most_bytes``, flagged in an extra column."""

    most_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        size = 0
        for batch in batches:
            size += batch.nbytes
            cut = size > self.most_bytes
            flag = pa.repeat(pa.scalar(cut), batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, flag], [*batch.schema.names, CUT])
            if cut:
                return


def _result(rows: DataFrame, long: set[str], most_bytes: int) -> QueryResult:
    schema = StructType([*rows.schema.fields, StructField(CUT, BooleanType())])
    table = rows.mapInArrow(UntilTooMuch(most_bytes), schema).toArrow()
    last = table.num_columns - 1
    cut = table.num_rows > 0 and table.column(last)[table.num_rows - 1].as_py()
    plain = table.remove_column(last)
    fields = [
        field.with_metadata(json_text.NUMBER) if field.name in long else field
        for field in plain.schema
    ]
    return QueryResult(plain.cast(pa.schema(fields)), cut)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _is_long(field: StructField) -> bool:
    return isinstance(field.dataType, DecimalType) and field.dataType.precision == MOST_DIGITS


def _explained(error: Exception, database: Jdbc) -> FlumengError:
    """Return a UserError when a person has to act, else an UnavailableError."""
    causes = list(_causes(error))
    for cause in causes:
        if cause.getClass().getName() == "java.lang.ClassNotFoundException":
            return UserError(
                f"Spark has no driver for {database.address}: flumeng cluster set spark.packages "
                f"'[\"{PACKAGES[database.kind]}\"]'"
            )
    for cause in reversed(causes):
        if (state := _sql_state(cause)) is not None:
            return _of_state(state, _line(cause), database)
    for cause in reversed(causes):
        name = cause.getClass().getName()
        if name.endswith(("AnalysisException", "ArithmeticException", "DateTimeException")):
            return UserError(f"Spark cannot read rows of {database.address}: {_line(cause)}")
    why = _line(causes[-1]) if causes else str(error)
    return UnavailableError(f"{database.address} was not read: {excerpt(why, MOST_CHARACTERS)}")


def _of_state(state: str, why: str, database: Jdbc) -> FlumengError:
    if state.startswith(LATER) and state not in NEVER:
        return UnavailableError(f"{database.address} does not answer: {why}")
    hint = {
        "28": "check username, password and the user's permissions",
        "3D": "check the url",
        "42": "check table, query, columns and track, and the user's permissions",
    }.get(state[:2])
    return UserError(f"{database.address} refuses: {why}" + (f"; {hint}" if hint else ""))


def _causes(error: Exception) -> Iterator[Any]:
    """Yield the Java exceptions, outermost first."""
    thrown: Any = None
    if isinstance(error, Py4JJavaError):
        thrown = error.java_exception
    elif isinstance(error, CapturedException):
        thrown = error._origin
    while thrown is not None:
        yield thrown
        thrown = thrown.getCause()


def _sql_state(cause: Any) -> str | None:
    try:
        state = cause.getSQLState()
    except Py4JError:  # another exception, without this method
        return None
    return str(state) if state else None


def _line(cause: Any) -> str:
    lines = str(cause.getMessage() or cause.getClass().getName()).strip().splitlines()
    return excerpt(lines[0].strip(), MOST_CHARACTERS)
