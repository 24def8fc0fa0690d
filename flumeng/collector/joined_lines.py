"""Where executors tell how far they have joined the lines of each partition.

All pipelines of a process share one of Spark's accumulators, since it never forgets one. What is
told twice of a range says the same.
"""

from __future__ import annotations

from functools import cache

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import SparkSession

from flumeng.inputs.lines.joined import JoinedAccumulator, JoinedRanges


class _Newest(AccumulatorParam[JoinedRanges]):
    def zero(self, value: JoinedRanges) -> JoinedRanges:
        del value
        return {}

    def addInPlace(self, value1: JoinedRanges, value2: JoinedRanges) -> JoinedRanges:  # noqa: N802  # pyspark's
        """A new mapping: another thread may look at the one that there was."""
        return {**value1, **value2}


@cache
def accumulator_of(session: SparkSession) -> JoinedAccumulator:
    """The one of a process; each partition that a task ever had is an entry."""
    return session.sparkContext.accumulator({}, _Newest())
