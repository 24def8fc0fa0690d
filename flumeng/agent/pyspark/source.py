"""Flumeng's data source for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriter
from pyspark.sql.types import StructType

from flumeng.agent.pyspark.cursor import connect
from flumeng.agent.pyspark.options import Options, WriteOptions
from flumeng.agent.pyspark.outgoing import columns_of
from flumeng.agent.pyspark.planning import read
from flumeng.agent.pyspark.stream import Opened, StreamReader
from flumeng.agent.pyspark.targets import find
from flumeng.agent.pyspark.writer import (
    TAKES_ARROW,
    BatchWriter,
    StreamArrowWriter,
    StreamRowWriter,
    TaskWriter,
)
from flumeng.platform.errors import UserError


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
        return read(partition, self._options.columns)


SCHEMA = (
    "body binary, ts timestamp, host string, attrs map<string,string>, "
    "journal string, seq bigint, replayed boolean"
)


def read_columns(schema: StructType) -> tuple[str, ...]:
    """Return the names of columns of a given schema. Raises UserError for others than of events."""
    known = dict(column.split(" ") for column in SCHEMA.split(", "))
    for field in schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        if known.get(name) != kind:
            raise UserError(f"a flow has no column {name} {kind}: its columns are {SCHEMA}")
    return tuple(schema.fieldNames())


class FlumengDataSource(DataSource):
    """The data source registered with Spark. Raises UserErrors of ``Options``."""

    @classmethod
    def name(cls) -> str:
        return "flumeng"

    def schema(self) -> str:
        Options.parse(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._read_options(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  Spark's
        return StreamReader(self._read_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        options = self._write_options(schema, overwrite=overwrite)
        return BatchWriter(TaskWriter(find(options), columns_of(schema)), options.write_id)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        options = self._write_options(schema, overwrite=overwrite)
        if options.write_id:
            raise UserError("writeId is for batches: a stream has the id of its query")
        kind = StreamArrowWriter if TAKES_ARROW else StreamRowWriter
        return kind(TaskWriter(find(options), columns_of(schema)))

    def _read_options(self, schema: StructType) -> Options:
        """Read the columns of ``schema`` only. Raises UserError for others."""
        return replace(Options.parse(self.options), columns=read_columns(schema))

    def _write_options(self, schema: StructType, *, overwrite: bool) -> WriteOptions:
        """Check everything that needs no cluster. Raises UserError."""
        if overwrite:
            raise UserError('a flow cannot be overwritten: use mode("append")')
        columns_of(schema)
        return WriteOptions.parse(self.options)
