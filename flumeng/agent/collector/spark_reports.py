"""Reports of stages whose rows go on into Spark SQL, so that no row can carry them to the driver.

They come through one accumulator of the session: Spark never forgets an accumulator. A task that
Spark repeats replaces its own reports.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reports import Reports
from flumeng.events.lazy_batch import RunParameters, Stage

Key = tuple[int, int]
"""Number of the function of stages, and of the partition."""
Runs = dict[str, dict[Key, Reports]]
_numbers = itertools.count()


class Newest(AccumulatorParam[Runs]):
    """Reports by run, function of stages and partition. The newest ones replace those before."""

    def zero(self, value: Runs) -> Runs:
        del value
        return {}

    def addInPlace(self, value1: Runs, value2: Runs) -> Runs:  # noqa: N802  # pyspark's
        for run, of in value2.items():
            value1.setdefault(run, {}).update(of)
        return value1


@cache
def _accumulator(session: SparkSession) -> Accumulator[Runs]:
    return session.sparkContext.accumulator({}, Newest())


class RunReports:
    """Collects the reports of runs, in the driver."""

    def __init__(self, session: SparkSession) -> None:
        self._accumulator = _accumulator(session)
        self._pickled = pickle.dumps(self._accumulator)

    def around(self, stage: Stage) -> Stage:
        """Return ``stage`` with sending its reports."""
        return _Sending(stage, next(_numbers), self._pickled)

    def take(self, run: str) -> Reports:
        """Return the reports of a run that has ended, and forget them."""
        total = Reports()
        for of in self._accumulator.value.pop(run, {}).values():
            total.add(of)
        return total


@dataclass(frozen=True)
class _Sending:
    stage: Stage
    number: int
    accumulator: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with reports.collecting() as made:
            yield from self.stage(batches)
        context = TaskContext.get()
        assert context is not None
        accumulator: Any = pickle.loads(self.accumulator)  # it comes from our own driver
        key = self.number, context.partitionId()
        accumulator.add({RunParameters.of_this_task().run: {key: made}})
