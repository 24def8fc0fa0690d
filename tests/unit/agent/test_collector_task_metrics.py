"""Spark's counts of its tasks count once, for the flows of the job, and are forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.task_metrics import KEEP_SECONDS, Row, TaskMetrics, Used
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range
from tests.testkit.collector import ScriptedPipeline


def work(flow: str, events: int) -> Work:
    text = f"{{flow: {flow}, sources: [syslog: {{listen: '127.0.0.1:1'}}], sinks: [console: {{}}]}}"
    pipeline = ScriptedPipeline(parse_flow(text))
    return Work(pipeline, [Range("j", 0, events)], {}, {}, 1.0, lambda _: None)


@dataclass
class Spark:
    """Its status store, and the number of requests to it."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    of_stages: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    trouble: Exception | None = None

    def run(self, number: int, group: str | None, *stages: int, status: str = "SUCCEEDED") -> None:
        info = {"jobId": number, "status": status, "stageIds": list(stages)}
        info |= {} if group is None else {"jobGroup": group}
        self.rows[number] = {"info": info, "skippedStages": []}

    def stage(self, number: int, seconds: float, *, peak: int = 0, failed: int = 0) -> None:
        info = {"stageId": number, "executorRunTime": 1000 * seconds, "executorCpuTime": 0}
        info |= {"jvmGcTime": 0, "diskBytesSpilled": 0}
        info |= {"numFailedTasks": failed, "peakExecutionMemory": peak}
        self.of_stages.append({"info": info})

    def jobs(self, first: int) -> Sequence[Row]:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return [row for number, row in self.rows.items() if number >= first]

    def stages(self, first: int) -> Sequence[Row]:
        return [row for row in self.of_stages if row["info"]["stageId"] >= first]


class World:
    def __init__(self) -> None:
        self.spark = Spark()
        self.now = 0.0
        self.used: dict[str, Used] = {}
        self.metrics = TaskMetrics(self.spark, self._tell, lambda: self.now)

    def _tell(self, flow: str, used: Used) -> None:
        self.used[flow] = self.used.get(flow, Used()).plus(used)

    def ran(self, name: str, *works: Work) -> None:
        with self.metrics.running(name, works):
            pass

    def look(self) -> dict[str, float]:
        self.metrics.poll()
        return {flow: used.run_seconds for flow, used in self.used.items()}


@pytest.fixture
def world() -> World:
    return World()


def test_shared_job_is_counted_by_events_and_its_peak_memory_for_all(world: World) -> None:
    world.ran("a", work("one", 10), work("two", 20), work("one", 10))
    world.spark.run(7, "a", 3, 4)
    world.spark.stage(3, 3.0, peak=5, failed=2)
    world.spark.stage(4, 1.0, peak=9)
    assert world.look() == {"one": 2.0, "two": 2.0}
    assert {used.peak_memory_bytes for used in world.used.values()} == {9}
    assert world.used["one"].failed_tasks == 1.0


def test_a_job_without_events_is_shared_out_evenly(world: World) -> None:
    world.ran("a", work("one", 0), work("two", 0))
    world.spark.run(0, "a", 0)
    world.spark.stage(0, 3.0)
    assert world.look() == {"one": 1.5, "two": 1.5}


def test_each_job_counts_once_also_one_that_ends_after_a_later_one(world: World) -> None:
    world.ran("a", work("one", 1))
    world.ran("b", work("two", 1))
    world.spark.run(0, "a", 0, status="RUNNING")
    world.spark.run(1, "b", 1)
    world.spark.stage(0, 1.0)
    world.spark.stage(1, 2.0)
    for _ in range(3):
        assert world.look() == {"two": 2.0}
    world.spark.run(0, "a", 0)
    for _ in range(3):
        assert world.look() == {"two": 2.0, "one": 1.0}


def test_stages_of_an_earlier_job_and_jobs_of_others_do_not_count(world: World) -> None:
    world.ran("a", work("one", 1))
    world.spark.run(0, None, 0)
    world.spark.run(1, "somebody", 0)
    world.spark.run(2, "a", 0, 1)
    world.spark.rows[2]["skippedStages"] = [0]
    world.spark.run(3, "a")
    world.spark.stage(0, 8.0)
    world.spark.stage(1, 1.0)
    world.spark.stage(1, 0.5)
    assert world.look() == {"one": 1.5}


def test_spark_is_not_queried_while_nothing_runs(world: World) -> None:
    world.look()
    assert world.spark.asked == 0
    world.ran("a", work("one", 1))
    world.spark.run(0, "a", 0)
    world.spark.stage(0, 1.0)
    world.look()
    world.now = KEEP_SECONDS
    world.look()
    asked = world.spark.asked
    world.look()
    assert world.spark.asked == asked == 2


def test_spark_is_queried_again_when_it_did_not_answer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.ran("a", work("one", 1))
    world.spark.run(0, "a", 0)
    world.spark.stage(0, 1.0)
    world.spark.trouble = ValueError("no JSON")
    assert world.look() == world.look() == {}
    assert [record.getMessage() for record in caplog.records] == [
        "cannot read the metrics of Spark's tasks, retrying: no JSON"
    ]
    world.spark.trouble = None
    assert world.look() == {"one": 1.0}


def test_job_that_spark_never_reports_is_forgotten(world: World) -> None:
    world.spark.trouble = ValueError("no JSON")
    for number in range(3):
        world.ran(f"job-{number}", work("one", 1))
    world.look()
    world.now = KEEP_SECONDS
    world.look()
    asked = world.spark.asked
    world.look()
    assert world.spark.asked == asked == 2


def test_uncountable_job_does_not_count_another_twice(world: World) -> None:
    world.ran("a", work("one", 1))
    world.ran("b", work("two", 1))
    world.spark.run(0, "a", 0)
    world.spark.run(1, "b", 1)
    world.spark.stage(0, 1.0)
    world.spark.of_stages.append({"info": {"stageId": 1}})
    assert world.look() == world.look() == {}
    world.ran("c", work("one", 1))
    world.spark.of_stages.pop()
    world.spark.run(2, "c", 2)
    world.spark.stage(2, 2.0)
    assert world.look() == {"one": 2.0}
