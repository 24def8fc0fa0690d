"""Spark's own view of a flow's jobs: their description, and the use of their tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.collector.task_metrics import StatusStore, TaskMetrics, Used
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.journals.reader import JournalReader
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform import file_store
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import wait_for

JOURNAL = "web.n1.0.00000000"
SQL = "where: 'length(body) > 0'"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serves 60 events of JOURNAL."""
    journal = Journal.create(tmp_path, JOURNAL)
    journal.append(numbered_events(0, 60))
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})
    yield server.address
    server.stop()
    journal.close()


def work(
    spark: SparkSession, lake: Path, address: str, flow: str, *ranges: Range, filters: str = ""
) -> Work:
    text = (
        f"{{flow: {flow}, sources: [syslog: {{listen: '127.0.0.1:0'}}], filters: [{filters}], "
        f"sinks: [files: {{path: '{lake}'}}]}}"
    )
    pipeline = SparkPipeline(spark, parse_flow(text), TaskRevision(flow, "0", 1), JournalReader())
    staging = {root: f"{root}/_flumeng/{flow}.1.0" for root in pipeline.roots}
    for directory in staging.values():
        file_store.LOCAL.make_directory(directory)
    return Work(pipeline, ranges, {JOURNAL: address}, staging, 60.0, lambda _: None)


def descriptions(spark: SparkSession, group: str) -> set[str]:
    found = [row["info"] for row in StatusStore(spark).jobs(0)]
    return {job["description"] for job in found if job.get("jobGroup") == group}


def look_until(metrics: TaskMetrics, used: dict[str, Used], flows: int) -> None:
    def looked() -> bool:
        metrics.poll()
        return len(used) >= flows

    wait_for(looked, lambda: f"only {list(used)} were counted")


@pytest.mark.parametrize("filters", ["", SQL])
def test_job_description_names_flow_task_and_batch_and_is_counted_for_the_flow(
    spark: SparkSession, tmp_path: Path, address: str, filters: str
) -> None:
    used: dict[str, Used] = {}
    metrics = TaskMetrics(StatusStore(spark), lambda flow, more: used.update({flow: more}))
    group = f"alone-{bool(filters)}"
    ranges = Range(JOURNAL, 5, 10), Range(JOURNAL, 20, 60)
    works = [work(spark, tmp_path / "lake", address, "web", *ranges, filters=filters)]
    assert works[0].pipeline.shareable == (not filters)
    (outcome,) = SparkEngine(spark, metrics.running).write(works, group, "slot")
    assert not isinstance(outcome, Exception)
    look_until(metrics, used, 1)
    assert descriptions(spark, group) == {f"web/0: 45 events, {JOURNAL} 5-10 and 1 more"}
    assert used["web"].run_seconds > 0
    assert used["web"].cpu_seconds > 0
    assert used["web"].failed_tasks == 0


def test_shared_job_description_counts_tasks_and_its_cost_is_split_by_events(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    used: dict[str, Used] = {}
    metrics = TaskMetrics(StatusStore(spark), lambda flow, more: used.update({flow: more}))
    works = [
        work(spark, tmp_path / "lake", address, f"f{n}", Range(JOURNAL, 0, n * 10))
        for n in range(1, 6)
    ]
    SparkEngine(spark, metrics.running).write(works, "together", "slot")
    look_until(metrics, used, 5)
    assert descriptions(spark, "together") == {
        "5 batches of 5 flows, 150 events: f1/0, f2/0, f3/0, 2 more"
    }
    one = used["f1"].run_seconds
    assert one > 0
    assert {flow: round(part.run_seconds / one) for flow, part in used.items()} == {
        f"f{n}": n for n in range(1, 6)
    }
