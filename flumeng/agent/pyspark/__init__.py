"""The journals of a flow as a data source of Spark, for notebooks and jobs of others.

    from flumeng.agent.pyspark import FlumengDataSource
    spark.dataSource.register(FlumengDataSource)
    spark.readStream.format("flumeng").option("flow", "web")...

What is read are the events as the flow's sources have received them, beside the flow's collectors
and without them: under a cursor of its own, or under none.
"""

from __future__ import annotations

from flumeng.agent.pyspark.cursor import commit, next_offsets
from flumeng.agent.pyspark.source import FlumengDataSource

__all__ = ["FlumengDataSource", "commit", "next_offsets"]
