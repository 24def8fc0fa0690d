"""Writes batches through a Spark DataFrame writer. Spark's file committer writes into
``_temporary`` with attempt 0 for every batch, and removes it after a job, including files of
concurrent jobs. So each write gets its own attempt number, and removes only that directory."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.spark.options import Spark
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform import secrets

log = logging.getLogger(__name__)

ATTEMPT = "mapreduce.job.application.attempt.id"
KEEP_OTHERS = "mapreduce.fileoutputcommitter.cleanup.skipped"
PENDING = "_temporary"


class SparkSink:
    roots = ()
    identified = writes_at_once = False

    def __init__(self, options: Spark, _task: TaskRevision) -> None:
        self._options = options
        self._given = secrets.filled(options.options)

    def stage(self, batch: LazyBatch, _attempt: Attempt) -> LazyBatch:
        return batch.acted(partial(write, self._options, self._given))

    def written(self, _rows: Sequence[Row]) -> Written:
        return Written(0)


def write(options: Spark, given: Mapping[str, str], rows: DataFrame) -> None:
    writer = rows.write.format(options.format).mode(options.mode).options(**given)
    if options.partition_by:
        writer = writer.partitionBy(*options.partition_by)
    if options.table is not None:
        writer.saveAsTable(options.table)
    elif options.path is None:
        writer.save()
    else:
        number = random.randrange(1, 2**31)
        try:
            writer.options(**{ATTEMPT: number, KEEP_OTHERS: True}).save(options.path)
        finally:
            _remove(rows.sparkSession, f"{options.path}/{PENDING}/{number}")


def _remove(spark: SparkSession, directory: str) -> None:
    """Remove a directory in any of Spark's file systems: Spark drops a database with its content.
    A failure is logged only, since the batch is written."""
    database = f"spark_catalog.flumeng_{uuid.uuid4().hex}"
    location = directory.replace("\\", r"\\").replace("'", r"\'")
    try:
        spark.sql(f"CREATE DATABASE {database} LOCATION '{location}'")
        spark.sql(f"DROP DATABASE {database}")
    except (Py4JError, PySparkException) as error:
        log.warning("cannot remove %s: %s", directory, error)
