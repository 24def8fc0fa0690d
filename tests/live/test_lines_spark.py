"""Executors tell the driver how far they have joined lines, on every way that a batch takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Progress, Range
from flumeng.connectors.journals.reader import JournalReader
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from tests.testkit.collector import TASK

JOURNALS = ("web.n1.0.00000000", "web.n1.0.00000001")
BODIES = [b"a", b" a", b" a", b"b", b"c", b" c"]
FLOW = """\
flow: web
sources: [tail: {{paths: [/a]}}]
multiline: {{continues: "^ "}}
batch: {{bytes: 1 MiB}}
{filters}
sinks: [{{files: {{path: {folder}/lake, format: json, compression: none}}}}, noop]
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    journals = {name: Journal.create(tmp_path / name, name) for name in JOURNALS}
    columns = [
        pa.array(BODIES, pa.binary()),
        pa.array([datetime(2026, 3, 1, tzinfo=UTC)] * len(BODIES), pa.timestamp("us", "UTC")),
        pa.array(["192.0.2.1"] * len(BODIES)),
        pa.array([[("source", "tail")]] * len(BODIES), pa.map_(pa.string(), pa.string())),
    ]
    for journal in journals.values():
        journal.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
        journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: journals)
    yield server.address
    server.stop()
    for journal in journals.values():
        journal.close()


@pytest.mark.parametrize(
    "filters",
    ["", "filters: [sql: 'SELECT * FROM events WHERE length(body) > 0']"],
    ids=["units", "frames"],
)
def test_batch_reports_how_far_it_may_be_acked(
    spark: SparkSession, tmp_path: Path, address: str, filters: str
) -> None:
    spec = parse_flow(FLOW.format(filters=filters, folder=tmp_path))
    pipeline = SparkPipeline(spark, spec, TASK, JournalReader())
    assert pipeline.shareable == (not filters)
    first, second = JOURNALS
    one = (Range(first, 0, 6), Range(second, 0, 6, flush=True))
    assert written(pipeline, one, address, tmp_path / "one") == [
        (first, 0, "a\n a\n a"),
        (first, 3, "b"),
        (second, 0, "a\n a\n a"),
        (second, 3, "b"),
        (second, 4, "c\n c"),
    ]
    assert {name: told.progress for name, told in pipeline.joined(one).items()} == {
        first: Progress(4, 4),
        second: Progress(6, 6),
    }
    assert pipeline.joined(one)[second].closed["timeout"] == 1
    two = (Range(first, 4, 6, emitted=4, flush=True),)
    assert pipeline.joined(two) == {}, "nothing is believed that was told of another range"
    assert written(pipeline, two, address, tmp_path / "two") == [(first, 4, "c\n c")]
    assert pipeline.joined(two)[first].progress == Progress(6, 6)
    assert pipeline.event_bytes() is not None


def written(
    pipeline: SparkPipeline, ranges: tuple[Range, ...], address: str, staging: Path
) -> list[tuple[str, int, str]]:
    roots = {root: str(staging) for root in pipeline.roots}
    staging.mkdir()
    where = {piece.partition: address for piece in ranges}
    work = Work(pipeline, ranges, where, roots, 60.0, lambda _: None)
    (outcome,) = SparkEngine(pipeline._spark).write([work], "job", "slot")
    assert isinstance(outcome, list), outcome
    rows = [
        json.loads(line)
        for staged, _ in outcome[0].files
        for line in Path(staged).read_text().splitlines()
    ]
    return sorted((row["journal"], row["seq"], row["body"]) for row in rows)
