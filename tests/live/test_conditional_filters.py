"""``select``, ``lookup`` and ``sql`` under a condition, in a real Spark: each event goes through
the filter or passes it by, once, and all rows have the declared columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import check_flow, parse_flow
from flumeng.connectors.journals.reader import JournalReader
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import READ_SCHEMA
from flumeng.filters.segments import Step
from flumeng.platform.errors import UserError
from tests.testkit.collector import TASK

EVENTS = 6
SCHEMA = identity.with_identity(READ_SCHEMA)
IN_SPARK = "upper(host) = 'A'"


def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """EVENTS in each split, in turn of the hosts a and b."""
    for batch in numbers:
        for split in batch[0].to_pylist():
            seqs = range(split * EVENTS, (split + 1) * EVENTS)
            rows = [
                {
                    "body": b"%d" % seq,
                    "ts": seq,
                    "host": "ab"[seq % 2],
                    "attrs": [("source", "test")],
                    "journal": "j",
                    "seq": seq,
                    "replayed": False,
                }
                for seq in seqs
            ]
            yield identity.identify(pa.RecordBatch.from_pylist(rows, READ_SCHEMA), split)


def flow(step: str, when: str) -> str:
    return (
        "flow: f\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        f'  - {step}\n    when: "{when}"\nsinks: [noop]\n'
    )


def through(spark: SparkSession, step: str, when: str) -> tuple[LazyBatch, list[dict[str, Any]]]:
    (part,) = check_flow(flow(step, when)).filters
    one = Step.of(part)
    batch = LazyBatch.of_splits(spark, 2, read, SCHEMA)
    one.apply(batch)
    for table in one.tables:
        table.refresh()
    found = one.apply(batch)
    rows = found.rows()
    assert [field.name for field in found.schema] == rows.columns
    return found, [row.asDict() for row in rows.collect()]


@pytest.mark.parametrize("when", ["host = 'a'", IN_SPARK])
@pytest.mark.parametrize("computed", [False, True])
def test_select_under_a_condition_changes_the_events_that_meet_it(
    spark: SparkSession, when: str, computed: bool
) -> None:
    number = "seq + 1 AS seq" if computed else "seq"
    batch, rows = through(spark, f'select: ["host AS machine", body, "{number}"]', when)
    assert batch.schema.names[:7] == READ_SCHEMA.names
    assert batch.schema.field("seq").type == pa.int64()
    assert not batch.shuffled
    for at, row in enumerate(rows):
        chosen = at % 2 == 0
        assert row["machine"] == ("a" if chosen else None)
        assert row["host"] == (None if chosen else "b")
        assert (row["ts"] is None) == chosen
        assert row["body"] == b"%d" % at
        assert row["seq"] == at + (1 if chosen and computed else 0)
        assert (row["__journal"], row["__seq"], row["__split"]) == ("j", at, at // EVENTS)
    assert len(rows) == 2 * EVENTS


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("when", ["host = 'a' OR seq = 1", f"{IN_SPARK} OR seq = 1"])
def test_lookup_under_a_condition_changes_the_events_that_meet_it(
    spark: SparkSession, tmp_path: Path, how: str, when: str
) -> None:
    """Of host b there is a row, and of host a there is none: those that pass by have neither."""
    (tmp_path / "racks.csv").write_text("host,rack\nb,7\n")
    table = f"{{csv: {tmp_path}/racks.csv, schema: 'host STRING, rack INT'}}"
    _, rows = through(spark, f"lookup: {{on: [host], table: {table}, how: {how}}}", when)
    assert [(row["seq"], row["rack"]) for row in rows] == [
        (seq, 7 if seq == 1 else None) for seq in range(2 * EVENTS) if how == "left" or seq % 2 == 1
    ]


@pytest.mark.parametrize("when", ["host = 'a'", IN_SPARK])
def test_statement_under_a_condition_runs_over_the_events_that_meet_it(
    spark: SparkSession, when: str
) -> None:
    query = "SELECT host, count(*) AS n, CAST(max(seq) AS DOUBLE) AS top FROM events GROUP BY host"
    batch, rows = through(spark, f'sql: "{query}"', when)
    assert batch.schema.names == [*READ_SCHEMA.names, "n", "top"]
    found = sorted((row["host"], row["n"], row["top"], row["seq"]) for row in rows if row["n"])
    assert found == [("a", EVENTS, 2.0 * EVENTS - 2, None)]
    assert sorted(row["seq"] for row in rows if not row["n"]) == list(range(1, 2 * EVENTS, 2))
    assert {row["ts"] is None for row in rows if not row["n"]} == {False}


def test_statement_that_keeps_event_identity_keeps_it_for_all_rows(spark: SparkSession) -> None:
    batch, rows = through(spark, 'sql: "SELECT * FROM events WHERE seq > 3"', "host = 'a'")
    assert identity.present(batch.schema) == identity.COLUMNS
    assert batch.shuffled
    wanted = sorted([1, 3, *range(4, 2 * EVENTS)])
    assert sorted((row["__seq"], row["__split"]) for row in rows) == [
        (seq, seq // EVENTS) for seq in wanted
    ]


def test_flow_is_refused_when_a_sink_needs_columns_that_the_statement_drops(
    spark: SparkSession,
) -> None:
    by_split = (
        "sinks: [sql: {url: 'postgresql://h/d', username: u, table: t}]\ndelivery: exactly-once\n"
    )
    by_event = "sinks: [elasticsearch: {hosts: ['http://s:9200'], index: a}]\n"
    for query, sink, message in (
        ("SELECT * FROM events", by_split, r"^filters\[0\]\.sql: .* leave their splits"),
        (
            "SELECT ts, host FROM events",
            by_event,
            r"^filters\[0\]\.sql: .* needs the event of each row",
        ),
    ):
        text = flow(f'sql: "{query}"', "host = 'a'").replace("sinks: [noop]\n", sink)
        with pytest.raises(UserError, match=message):
            SparkPipeline(spark, parse_flow(text), TASK, JournalReader())


def test_formats_under_conditions_fill_the_same_columns(spark: SparkSession) -> None:
    """An event whose body is not of the format has null in them, also where it had values."""
    steps = (
        ("parse: {format: regex, pattern: '^(?P<number>[0-9])$'}", "seq < 4"),
        ("parse: {format: json, fields: {number: '$.n'}}", "seq = 3"),
        ("parse: {format: regex, pattern: '(?P<number>[0-9]*)$'}", "seq > 5"),
    )
    filters = "".join(f'  - {step}\n    when: "{when}"\n' for step, when in steps)
    text = f"flow: f\nsources: [tail: {{paths: [/a]}}]\nfilters:\n{filters}sinks: [noop]\n"
    batch = LazyBatch.of_splits(spark, 2, read, SCHEMA)
    for part in check_flow(text).filters:
        batch = Step.of(part).apply(batch)
    rows = {row["seq"]: row["number"] for row in batch.rows().collect()}
    for seq, number in rows.items():
        assert number == (None if seq in (3, 4, 5) else str(seq)), seq
    assert len(rows) == 2 * EVENTS > 6
