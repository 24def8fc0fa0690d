"""Flumeng's data source for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from flumeng.agent.pyspark.cursor import connect
from flumeng.agent.pyspark.options import Options
from flumeng.agent.pyspark.planning import read
from flumeng.agent.pyspark.stream import Opened, StreamReader


class BatchReader(DataSourceReader):
    """``spark.read``: reads the content of the journals when the DataFrame is first used. With a
    cursor it begins at the cursor's acks, which only ``commit`` moves."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with (
            closing(connect(options.zookeeper)) as store,
            closing(Opened(options, store)) as reader,
        ):
            start = {} if reader.cursor is None else reader.cursor.offsets()
            ends = reader.read_ends()
            if options.fail_on_data_loss:
                ends.require_all('option("failOnDataLoss", "false") reads the other nodes')
            return reader.planning.partitions(start, ends.reached)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition)


SCHEMA = (
    "body binary, ts timestamp, host string, attrs map<string,string>, "
    "journal string, seq bigint, replayed boolean"
)


class FlumengDataSource(DataSource):
    """The data source registered with Spark. Raises UserErrors of ``Options``."""

    @classmethod
    def name(cls) -> str:
        return "flumeng"

    def schema(self) -> str:
        Options.parse(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:  # noqa: ARG002  Spark's
        return BatchReader(Options.parse(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: ARG002, N802  Spark's
        return StreamReader(Options.parse(self.options))
