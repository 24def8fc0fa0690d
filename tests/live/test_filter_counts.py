"""The counts of a flow's filters while events pass through them, with a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Filtered, Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.journals.reader import JournalReader
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer

JOURNAL = "web.n1.0.00000000"
GOOD, BAD, OTHER = b'{"n": 1}', b"{", b'{"n": "x"}'
BODIES = [GOOD, BAD, GOOD, OTHER, GOOD, BAD, GOOD, GOOD]
NOOP, FILES = "noop", "files: {path: '%s', format: json}"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    journal = Journal.create(tmp_path / "journal", JOURNAL)
    count = len(BODIES)
    columns = [
        pa.array(BODIES, pa.binary()),
        pa.array([datetime(2026, 3, 1, tzinfo=UTC)] * count, pa.timestamp("us", "UTC")),
        pa.array(["192.0.2.1"] * count),
        pa.array([[("source", "tail")]] * count, pa.map_(pa.string(), pa.string())),
    ]
    journal.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})
    yield server.address
    server.stop()
    journal.close()


def write(pipeline: SparkPipeline, address: str, staging: Path) -> Filtered:
    """Write one batch of all BODIES in three splits, so that several executors count."""
    roots = {root: f"{root}/{staging.name}" for root in pipeline.roots}
    for root in roots.values():
        Path(root).mkdir(parents=True)
    where = {JOURNAL: address}
    ranges = [Range(JOURNAL, 0, len(BODIES))]
    work = Work(pipeline, ranges, where, roots, 60.0, lambda _: None, None, 3)
    (outcome,) = SparkEngine(spark_of(pipeline)).write([work], "job", "slot")
    assert not isinstance(outcome, Exception), outcome
    return pipeline.filtered()


def spark_of(pipeline: SparkPipeline) -> SparkSession:
    return pipeline._spark


JSON = "parse: {format: json, schema: 'n int'}"
HOST = "parse: {format: regex, pattern: '^(?P<other>x+)$'}"
REGEX = """parse: {format: regex, pattern: '"n": (?P<n>[0-9]+)'}"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("", NOOP), Filtered(0, 0)),
        (("where: 'seq < 2'", NOOP), Filtered(6, 0)),
        ((f"{REGEX}", NOOP), Filtered(0, 3)),
        ((f"{REGEX}}}, {{where: 'n is not null'}}, {{select: [n]", NOOP), Filtered(3, 3)),
        ((JSON, NOOP), Filtered(0, 3)),
        ((f"{JSON}}}, {{where: 'n is not null'}}, {{{HOST}", NOOP), Filtered(3, 8)),
        ((f"{HOST}}}, {{{JSON}", NOOP), Filtered(0, 8)),
        ((f"{JSON}}}, {{where: 'n is not null'}}, {{select: [n]", FILES), Filtered(3, 3)),
        ((f"{JSON}}}, {{sql: 'SELECT n, attrs FROM events WHERE n > 0'", NOOP), Filtered(3, 3)),
        ((f"{JSON}}}, {{sql: 'SELECT n FROM events'", NOOP), Filtered(0, 3)),
        (("sql: 'SELECT host, count(*) AS n FROM events GROUP BY host'", NOOP), Filtered(None, 0)),
        ((f"{REGEX}", f"{NOOP}, {FILES}"), Filtered(0, 3)),
    ],
)
def test_events_that_filters_drop_and_cannot_parse_are_counted(
    spark: SparkSession, tmp_path: Path, address: str, given: tuple[str, str], expected: Filtered
) -> None:
    """Twice, since the second batch may run by a plan that is kept of the first. Rows that were
    grouped are no events any more."""
    filters, sinks = given
    filters = f"{{{filters}}}" if filters else ""
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
        f"filters: [{filters}], sinks: [{sinks.replace('%s', str(tmp_path / 'lake'))}]}}"
    )
    pipeline = SparkPipeline(spark, parse_flow(text), TaskRevision("web", "0", 1), JournalReader())
    first = write(pipeline, address, tmp_path / "first")
    assert (first, write(pipeline, address, tmp_path / "second")) == (expected, expected)


def test_a_batch_that_fails_is_not_counted(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
        "filters: [{where: 'seq < 2'}], sinks: [noop]}"
    )
    pipeline = SparkPipeline(spark, parse_flow(text), TaskRevision("web", "0", 1), JournalReader())
    work = Work(
        pipeline, [Range(JOURNAL, 0, 8)], {JOURNAL: "127.0.0.1:1"}, {}, 60.0, lambda _: None
    )
    (outcome,) = SparkEngine(spark).write([work], "job", "slot")
    assert (type(outcome).__name__, pipeline.filtered()) == ("UnreadableError", Filtered(0, 0))
    assert write(pipeline, address, tmp_path / "again") == Filtered(6, 0)
