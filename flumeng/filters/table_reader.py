"""Reads a lookup table into the memory of the driver, and checks its size and column types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from py4j.protocol import Py4JError
from pyarrow import csv
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from flumeng.config.tables import MOST_BYTES, MOST_ROWS, SILENT_SECONDS, Jdbc, LookupTable
from flumeng.platform import delta_storage, secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.file_store import open_files

QUERY_SECONDS = 60
ROWS_AT_ONCE = 1000
"""Rows that are fetched from a database at once, into the memory of its driver and of Spark."""


def read(options: LookupTable, schema: pa.Schema, spark: SparkSession) -> pa.Table:
    """Read a lookup table. Raises UserError if it does not fit, UnavailableError if unreadable."""
    try:
        return _bounded(_batches(options, schema, spark), schema)
    except FlumengError:
        raise
    except FileNotFoundError:
        raise UnavailableError("the file does not exist") from None
    except pa.ArrowInvalid as error:
        raise UserError(_first_line(error)) from error
    except (pa.ArrowException, OSError, Py4JError, PySparkException) as error:
        raise UnavailableError(_first_line(error)) from error


def _batches(
    options: LookupTable, schema: pa.Schema, spark: SparkSession
) -> Iterable[pa.RecordBatch]:
    if options.jdbc is not None:
        return _of_database(options.jdbc, schema, spark)
    if options.delta is not None:
        return _of_delta(options, schema)
    files, path = open_files(options.location)
    if options.csv is not None:
        return _of_csv(files.open_input_stream(path, compression=None), schema)
    return _of_dataset(ds.dataset(path, format="parquet", filesystem=files), schema)


def _of_csv(file: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    types = {field.name: field.type for field in schema}
    convert = csv.ConvertOptions(column_types=types, include_columns=schema.names)
    try:
        with file, csv.open_csv(file, convert_options=convert) as reader:
            yield from reader
    except pa.ArrowKeyError as error:
        raise UserError(_first_line(error)) from error


def _of_dataset(dataset: ds.Dataset, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    missing = [name for name in schema.names if name not in dataset.schema.names]
    if missing:
        raise UserError(f"the table has no column {missing[0]}")
    yield from dataset.to_batches(columns=schema.names)


def _of_delta(options: LookupTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        deltalake = import_module("deltalake")
    except ImportError as error:
        raise UserError("needs the package deltalake: pip install 'flumeng[delta]'") from error
    uri, storage = delta_storage.of(options.location, secrets.of(options.credentials))
    try:
        table: Any = deltalake.DeltaTable(uri, storage_options=storage)
    except deltalake.exceptions.TableNotFoundError:
        raise UnavailableError("the Delta table does not exist") from None
    except deltalake.exceptions.DeltaError as error:
        raise UnavailableError(_first_line(error)) from error
    yield from _of_dataset(table.to_pyarrow_dataset(), schema)


def _of_database(jdbc: Jdbc, schema: pa.Schema, spark: SparkSession) -> Iterator[pa.RecordBatch]:
    given = {
        "url": jdbc.url,
        "driver": jdbc.driver,
        "dbtable": jdbc.table,
        "queryTimeout": str(QUERY_SECONDS),
        "fetchsize": str(ROWS_AT_ONCE),
    }
    if jdbc.username is not None:
        given["user"] = jdbc.username
    if jdbc.password is not None:
        given["password"] = secrets.resolve(jdbc.password)
    apart = spark.newSession()
    apart.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_AT_ONCE)
    rows = (
        apart.read.format("jdbc").options(**jdbc.properties_within(SILENT_SECONDS), **given).load()
    )
    missing = [name for name in schema.names if name not in rows.columns]
    if missing:
        raise UserError(f"the table has no column {missing[0]}")
    taken = rows.select(*schema.names)
    yield from taken.mapInArrow(until_too_many, taken.schema).toArrow().to_batches()


def until_too_many(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches up to the one that exceeds the bounds, so that no more reaches the driver."""
    rows = size = 0
    for batch in batches:
        yield batch
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > MOST_ROWS or size > MOST_BYTES:
            return


def _bounded(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    taken: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > MOST_ROWS or size > MOST_BYTES:
            most = f"{MOST_ROWS:,} rows and {MOST_BYTES // 2**20} MiB"
            raise UserError(f"the table is larger than the limit of a lookup table, {most}")
        taken.append(batch.select(schema.names))
    table = pa.Table.from_batches(taken) if taken else schema.empty_table()
    return table.cast(schema).combine_chunks()


def _first_line(error: Exception) -> str:
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    causes = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (causes or lines or [type(error).__name__])[0]
