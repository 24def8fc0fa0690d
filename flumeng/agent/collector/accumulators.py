"""Spark accumulators: counts that executors report beside the rows of a batch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import SparkSession

from flumeng.agent.collector.lines import JoinedRange
from flumeng.connectors.ranged.accumulator import Accumulator, Entries

Value = TypeVar("Value")


class MergedEntries(AccumulatorParam[Entries[Value]]):
    """A dictionary that only grows. ``merge`` combines two values of one key."""

    def __init__(self, merge: Callable[[Value, Value], Value]) -> None:
        self._merge = merge

    def zero(self, value: Entries[Value]) -> Entries[Value]:
        del value
        return {}

    def addInPlace(  # noqa: N802  # pyspark's
        self, value1: Entries[Value], value2: Entries[Value]
    ) -> Entries[Value]:
        """Merge ``value2`` into ``value1`` in place: the cost depends on ``value2`` alone."""
        for key, value in value2.items():
            value1[key] = self._merge(value1[key], value) if key in value1 else value
        return value1


@cache
def counts(session: SparkSession) -> Accumulator[int]:
    return session.sparkContext.accumulator({}, MergedEntries[int](operator.add))


@cache
def joined_ranges(session: SparkSession) -> Accumulator[JoinedRange]:
    return session.sparkContext.accumulator({}, MergedEntries[JoinedRange](_newest))


def _newest(before: JoinedRange, now: JoinedRange) -> JoinedRange:
    del before
    return now
