"""The journals of a flow as a data source of Spark, for notebooks and other jobs.

from flumeng.agent.pyspark import FlumengDataSource
spark.dataSource.register(FlumengDataSource)
spark.readStream.format("flumeng").option("flow", "web")...

The data source reads events as received by the flow's sources, with or without a cursor.
"""

from __future__ import annotations

from flumeng.agent.pyspark.cursor import commit, next_offsets
from flumeng.agent.pyspark.source import FlumengDataSource

__all__ = ["FlumengDataSource", "commit", "next_offsets"]
