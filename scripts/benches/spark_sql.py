"""SQL and lookups in a collector, beside plain Spark that runs the same SQL over the same rows.

The statement joins each event with one of 100,000 rows, and its result is written as Parquet by
both. Plain Spark reads the events from Parquet files, which the collector has written before. It is
timed when it has run once, and the collector from half of the events on. ``crossing`` is what it
costs that events go into the JVM and back.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benches import collecting
from flumeng.agent.collector.spark import DRIVER_MEMORY

ROWS = 100_000
QUERY = "SELECT e.ts, e.host, e.seq, a.team FROM events e JOIN apps a ON e.seq % 100000 = a.id"
SCHEMA = "id BIGINT, host STRING, team STRING"


def measure(events: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        collecting.fill(place / "journals" / "0", events)
        apps = place / "apps.csv"
        apps.write_text(_table())
        table = f"{{csv: '{apps}', schema: '{SCHEMA}'}}"
        lookup_table = f"{{csv: '{apps}', schema: 'host STRING, team STRING'}}"
        statement = f"sql: {{query: '{QUERY}', tables: {{apps: {table}}}}}"
        lookup = f"lookup: {{on: [host], table: {lookup_table}}}"
        rows = place / "lake"

        found = {
            name: collecting.measure(
                place, name, "exactly-once" if "files" in sink else "at-least-once", sink, events,
                filters=f"[{filters}]", warm=events // 2,
            )
            for name, sink, filters in (
                ("rows", f"files: {{path: '{rows}'}}", ""),
                ("sql", f"files: {{path: '{place}/joined'}}", statement),
                ("lookup", "noop", lookup),
                ("straight", "noop", ""),
                ("crossing", "noop", "sql: 'SELECT * FROM events'"),
            )
        }  # fmt: skip
        plain = _plain_events_per_second(rows, apps, place / "plain", events)
    return {
        "sql_events_per_second": round(found["sql"]["rate"]),
        "sql_cpu_seconds_per_million": found["sql"]["cpu"],
        "plain_spark_events_per_second": round(plain),
        "sql_ratio": round(found["sql"]["rate"] / plain, 2),
        "lookup_events_per_second": round(found["lookup"]["rate"]),
        "crossing_cpu_seconds_per_million": round(
            found["crossing"]["cpu"] - found["straight"]["cpu"], 3
        ),
    }


def _table() -> str:
    """Eight of its rows are of hosts that send events."""
    rows = (
        f"{number},192.0.2.{number + 1}-{number if number >= 8 else ''}".rstrip("-")
        + f",team-{number % 100}\n"
        for number in range(ROWS)
    )
    return "id,host,team\n" + "".join(rows)


def _plain_events_per_second(rows: Path, apps: Path, target: Path, events: int) -> float:
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.parquet.compression.codec", "zstd")
        .getOrCreate()
    )
    try:
        spark.read.parquet(str(rows)).createOrReplaceTempView("events")
        spark.read.csv(str(apps), schema=SCHEMA, header=True).createOrReplaceTempView("apps")
        for attempt in ("cold", "warm"):
            began = time.monotonic()
            spark.sql(QUERY).write.parquet(f"{target}/{attempt}")
            seconds = time.monotonic() - began
    finally:
        spark.stop()
    return events / seconds
