"""Descriptions of a flow's jobs in Spark, and their run times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.journals.reader import JournalReader
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform import file_store
from tests.testkit.journal import numbered_events

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


def description(spark: SparkSession) -> str | None:
    """Return the description of this thread's last job."""
    return spark.sparkContext.getLocalProperty("spark.job.description")


@pytest.mark.parametrize("filters", ["", SQL])
def test_job_description_names_flow_task_and_batch_and_its_run_is_timed(
    spark: SparkSession, tmp_path: Path, address: str, filters: str
) -> None:
    ranges = Range(JOURNAL, 5, 10), Range(JOURNAL, 20, 60)
    works = [work(spark, tmp_path / "lake", address, "web", *ranges, filters=filters)]
    assert works[0].pipeline.shareable == (not filters)
    (outcome,) = SparkEngine(spark).write(works, f"alone-{bool(filters)}", "slot")
    assert not isinstance(outcome, Exception)
    assert description(spark) == f"web/0: 45 events, {JOURNAL} 5-10 and 1 more"
    times = works[0].pipeline.filtered().times
    assert times is not None
    assert 0 < times.cpu_seconds <= times.run_seconds


def test_shared_job_description_counts_tasks_and_each_flow_has_its_own_times(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    works = [
        work(spark, tmp_path / "lake", address, f"f{n}", Range(JOURNAL, 0, n * 10))
        for n in range(1, 6)
    ]
    SparkEngine(spark).write(works, "together", "slot")
    assert description(spark) == "5 batches of 5 flows, 150 events: f1/0, f2/0, f3/0, 2 more"
    times = [each.pipeline.filtered().times for each in works]
    assert all(of is not None and of.run_seconds > 0 for of in times)
