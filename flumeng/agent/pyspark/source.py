"""The data source as Spark knows it."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from flumeng.agent.pyspark.batch import BatchReader
from flumeng.agent.pyspark.options import Options
from flumeng.agent.pyspark.stream import StreamReader

SCHEMA = (
    "body binary, ts timestamp, host string, attrs map<string,string>, "
    "journal string, seq bigint, replayed boolean"
)
"""``READ_SCHEMA`` in Spark's words."""


class FlumengDataSource(DataSource):
    """Options: see ``Options``. Raises UserError for what is wrong with them."""

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
