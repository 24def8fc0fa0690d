"""Filters that change columns and rows, one behind the other in a real Spark: all of them in Arrow,
with a stage of Spark SQL between them, and with conditions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mmdb_writer import MMDBWriter
from netaddr import IPSet
from pyspark.sql import SparkSession

from flumeng.config import check_flow
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import READ_SCHEMA
from flumeng.filters.segments import Step

RECEIVED = datetime(2026, 11, 21, 12, tzinfo=UTC)
MODULE = "flumeng_test_steps"
STEPS = """
  - parse: {{format: regex, pattern: '^(?P<when>[^|]*)[|](?P<client>[^|]*)[|](?P<items>.*)'}}
  - time: {{column: when, formats: ["%d.%m.%Y %H:%M:%S"], timezone: Europe/Berlin}}
    when: "client <> '9.9.9.9'"
  - where: "upper(host) = 'H'"
  - set: {{place: "{{host}}/{{client}}", attrs.environment: test}}
  - set: {{attrs.environment: other}}
    when: "client = '1.2.3.4'"
  - geoip: {{column: client, database: {database}, fields: {{country: country.iso_code}}}}
    when: "attrs['environment'] = 'other'"
  - redact: {{columns: [client, place], kinds: [ipv4]}}
  - python: {{function: "{module}:length", adds: "length INT"}}
    when: "length(items) > 2"
  - explode: {{column: items, to: item}}
  - dedupe: [seq, item]
  - limit: {{events: 5, by: [client]}}
  - sample: {{rate: 1, by: [item]}}
    when: "item IS NOT NULL"
  - rename: {{client: who}}
  - drop: [body, when, attrs.source]
"""
BODIES = [
    b'21.11.2026 13:00:01|1.2.3.4|["a","b","a"]',
    b"21.11.2026 13:00:02|9.9.9.9|[]",
    b"no time|x|{}",
    b"",
]


def read(splits: Sequence[int]) -> pa.RecordBatch:
    count = len(BODIES)
    rows = {
        "body": BODIES,
        "ts": [RECEIVED] * count,
        "host": ["h"] * count,
        "attrs": [[("source", "tail")]] * count,
        "journal": ["web.n1.0"] * count,
        "seq": range(count),
        "replayed": [False] * count,
    }
    plain = pa.RecordBatch.from_pydict(rows, READ_SCHEMA)
    return identity.identify(plain, splits[0])


def stage(batches: Any) -> Any:
    for numbers in batches:
        yield read(numbers[0].to_pylist())


def test_filters_follow_each_other_and_keep_event_identity(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{MODULE}.py").write_text(
        "import pyarrow.compute as pc\n"
        "def length(batch):\n"
        "    return batch.append_column('length', pc.utf8_length(batch['items']))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spark.sparkContext.addPyFile(str(tmp_path / f"{MODULE}.py"))
    writer = MMDBWriter(4, "Test")
    writer.insert_network(IPSet(["1.2.3.0/24", "9.9.9.0/24"]), {"country": {"iso_code": "DE"}})
    writer.to_db_file(str(tmp_path / "geo.mmdb"))
    steps = STEPS.format(module=MODULE, database=tmp_path / "geo.mmdb")
    text = f"flow: f\nsources: [tail: {{paths: [/a]}}]\nfilters:{steps}sinks: [noop]\n"
    batch = LazyBatch.of_splits(spark, 1, stage, identity.with_identity(READ_SCHEMA))
    for part in check_flow(text).filters:
        batch = Step.of(part).apply(batch)
    assert identity.present(batch.schema) == identity.COLUMNS
    found = [row.asDict() for row in batch.rows().collect()]
    assert [(row["seq"], row["item"], row["length"]) for row in found] == [
        (0, "a", 13), (0, "b", 13), (1, None, None), (2, None, None), (3, None, None),
    ]  # fmt: skip
    assert [row["ts"].second for row in found] == [1, 1, 0, 0, 0]
    assert [row["who"] for row in found] == ["***", "***", "***", "x", None]
    assert [row["place"] for row in found] == ["h/***", "h/***", "h/***", "h/x", "h/"]
    assert [row["country"] for row in found] == ["DE", "DE", None, None, None]
    assert [row["attrs"] for row in found] == [
        {"environment": "other"},
        {"environment": "other"},
        {"environment": "test"},
        {"parse_error": "time: when is of no format", "environment": "test"},
        {"parse_error": "regex: no match", "environment": "test"},
    ]
    assert [(row["__journal"], row["__seq"]) for row in found] == [
        ("web.n1.0", row["seq"]) for row in found
    ]


WINDOWS = """
  - parse: {format: json, schema: "took_ms DOUBLE, status INT"}
  - aggregate:
      values:
        requests: count
        errors: "count_if(status >= 500)"
        named: "count_if(upper(host) = 'H')"
        took_ms: histogram(took_ms)
"""
MERGED = """
SELECT ts, sum(n) AS timed, percentile(ms, array(0.5, 0.99), n) AS quantiles FROM (
  SELECT ts, inline(arrays_zip(took_ms.values, took_ms.counts)) AS (ms, n) FROM {traffic}
) GROUP BY ts
"""


def test_rows_of_windows_are_put_together_in_sql(spark: SparkSession) -> None:
    """As the docs say: for any choice of splits, quantiles are within 1 %."""

    def requests(batches: Any) -> Any:
        for numbers in batches:
            for split in numbers[0].to_pylist():
                rows = [number for number in range(1, 1001) if number % 3 == split]
                bodies = [
                    f'{{"took_ms": {number}, "status": {499 + number % 2}}}'.encode()
                    for number in rows
                ]
                plain = [
                    {
                        "body": body,
                        "ts": RECEIVED,
                        "host": "h",
                        "attrs": [],
                        "journal": "web.n1.0",
                        "seq": number,
                        "replayed": False,
                    }
                    for number, body in zip(rows, bodies, strict=True)
                ]
                yield pa.RecordBatch.from_pylist(plain, READ_SCHEMA)

    text = f"flow: f\nsources: [tail: {{paths: [/a]}}]\nfilters:{WINDOWS}sinks: [noop]\n"
    batch = LazyBatch.of_splits(spark, 3, requests, READ_SCHEMA)
    for part in check_flow(text).filters:
        batch = Step.of(part).apply(batch)
    rows = batch.rows()
    found = rows.collect()
    assert sum(row.requests for row in found) == sum(row.named for row in found) == 1000
    assert sum(row.errors for row in found) == 500
    (merged,) = spark.sql(MERGED, traffic=rows).collect()
    assert merged.timed == 1000
    assert merged.quantiles == [pytest.approx(500.5, rel=0.01), pytest.approx(990, rel=0.01)]
