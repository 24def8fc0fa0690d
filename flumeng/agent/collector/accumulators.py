"""The accumulators of a process: what executors tell beside the rows of a batch.

Each entry that a task ever had stays, and is there once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import SparkSession

from flumeng.agent.collector.lines.joined import JoinedRange
from flumeng.connectors.ranged.accumulator import Accumulator, Entries

Value = TypeVar("Value")


class MergedEntries(AccumulatorParam[Entries[Value]]):
    """``merge``: what two values of one key are together."""

    def __init__(self, merge: Callable[[Value, Value], Value]) -> None:
        self._merge = merge

    def zero(self, value: Entries[Value]) -> Entries[Value]:
        del value
        return {}

    def addInPlace(  # noqa: N802  # pyspark's
        self, value1: Entries[Value], value2: Entries[Value]
    ) -> Entries[Value]:
        """Changes ``value1``: what it costs grows with ``value2`` alone. Other threads only get
        single entries of it."""
        for key, value in value2.items():
            value1[key] = self._merge(value1[key], value) if key in value1 else value
        return value1


@cache
def counts(session: SparkSession) -> Accumulator[int]:
    """Sums."""
    return session.sparkContext.accumulator({}, MergedEntries[int](operator.add))


@cache
def joined_ranges(session: SparkSession) -> Accumulator[JoinedRange]:
    """By task and partition, what was told last. What is told twice of a range says the same."""
    return session.sparkContext.accumulator({}, MergedEntries[JoinedRange](_newest))


def _newest(before: JoinedRange, now: JoinedRange) -> JoinedRange:
    del before
    return now
