"""A batch apart, which may never end, takes one of Spark's tasks, however large it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark import TaskContext

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine, _Part
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.collector.ranges import Scale
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.events.lazy_batch import Stage
from flumeng.events.schema import READ_SCHEMA
from tests.testkit.collector import TASK

FLOW = "{flow: web, sources: [tail: {paths: [/a]}], sinks: [noop]}"
CORES = 4


class Nothing:
    """A Spark accumulator without terms."""

    value: ClassVar[dict[str, Any]] = {}


class Spark:
    """The parts of a Spark session, its context and a DataFrame that units use."""

    defaultParallelism = CORES  # noqa: N815  # pyspark's
    master = "local[*]"

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.described = ""
        self._properties: dict[str, str | None] = {}

    @property
    def sparkContext(self) -> Spark:  # noqa: N802  # pyspark's
        return self

    @property
    def conf(self) -> dict[str, str]:
        return {}

    def accumulator(self, _zero: Any, _kind: Any) -> Nothing:
        return Nothing()

    def setJobGroup(self, _job: str, text: str, **_more: Any) -> None:  # noqa: N802  # pyspark's
        self.described = text

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802  # pyspark's
        self._properties[name] = value

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802  # pyspark's
        return self._properties.get(name)

    def range(self, _start: int, end: int, _step: int, _tasks: int) -> Spark:
        self._end = end
        return self

    def mapInArrow(self, stage: Stage, _schema: Any) -> Spark:  # noqa: N802  # pyspark's
        self._stage = stage
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        self.tasks.append(self._end)
        numbers = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(self._end)]
        with patch.object(TaskContext, "get", return_value=self):
            results = list(self._stage(iter(numbers)))
        return [tuple(row.values()) for batch in results for row in batch.to_pylist()]


@dataclass(frozen=True)
class Offsets:
    """Contents of a partition with so many offsets for each event."""

    per_event: float

    def events(self, start: int, end: int) -> int:
        return round((end - start) / self.per_event)

    def cut(self, start: int, end: int, events: int) -> int:
        return min(end, start + max(1, round(events * self.per_event)))

    def address(self, _start: int, _end: int) -> str:
        return ""


class NoEvents:
    schema = READ_SCHEMA
    modules: frozenset[str] = frozenset()

    def read(self, _piece: Range, _address: str) -> Iterator[pa.RecordBatch]:
        return iter(())


@pytest.mark.parametrize(("apart", "tasks"), [(False, CORES), (True, 1)])
@pytest.mark.parametrize("splits", [None, 8], ids=["", "decided"])
def test_batch_apart_takes_one_spark_task(*, apart: bool, tasks: int, splits: int | None) -> None:
    spark: Any = Spark()
    pipeline = SparkPipeline(spark, parse_flow(FLOW), TASK, NoEvents())
    ranges = (Range("web.n1.0.00000000", 0, 1_000_000),)
    addresses = {"web.n1.0.00000000": ""}
    work = Work(pipeline, ranges, addresses, {}, 60.0, lambda _: None, splits=splits, apart=apart)
    (outcome,) = SparkEngine(spark).write([work], "job", "slot")
    assert not isinstance(outcome, Exception)
    assert spark.tasks == [tasks]


def test_weights_of_splits_and_the_description_of_a_job_count_events_not_offsets() -> None:
    spark: Any = Spark()
    pipeline = SparkPipeline(spark, parse_flow(FLOW), TASK, NoEvents())
    heavy, light = Range("a", 0, 10), Range("b", 0, 1_000_000)
    scale = Scale({"a": Offsets(per_event=0.001), "b": Offsets(per_event=1000.0)})
    work = Work(pipeline, (heavy, light), {"a": "", "b": ""}, {}, 60.0, lambda _: None, scale=scale)
    part = _Part.of(work)
    assert sum(part.events) == 11_000
    SparkEngine(spark).write([work], "job", "slot")
    assert spark.described == "web/0: 11000 events, a 0-10 and 1 more"
