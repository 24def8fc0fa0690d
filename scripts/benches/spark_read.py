"""The same journal through the data source `flumeng` in a Spark session, beside the collector.

Both read the events without a sink, and both write them as Parquet. Ratios are events a second of
the data source over those of the collector, which needs no JVM for either. ``count_ratio`` is of
all columns, ``group_ratio`` of a count by host that reads this column only. ``copy_ratio`` is of
Spark when it reads and writes the same rows as Parquet: a session writes no faster, whatever it
reads. They run in turns, and the best run of each counts. The
collector is timed from its first ack on, the session when it has done the same once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benches import collecting
from flumeng.control.zookeeper import ABSENT
from zkschema import paths, records

TURNS = 2
FLOW = collecting.JOURNAL.partition(".")[0]
MASTER = "local[2]"
SESSION = """
import json, sys, time
from pyspark.sql import SparkSession
from flumeng.agent.pyspark import FlumengDataSource

master, hosts, flow, target, events = *sys.argv[1:5], int(sys.argv[5])
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.parquet.compression.codec", "zstd")
    .getOrCreate()
)
spark.dataSource.register(FlumengDataSource)

def load(reader=None):
    reader = (reader or spark.read).format("flumeng")
    return reader.option("zookeeper", hosts).option("flow", flow).load()

def count():
    assert load().count() == events

def group():
    found = load(spark.read.schema("host string")).groupBy("host").count().collect()
    assert sum(row["count"] for row in found) == events

def write():
    load().write.mode("overwrite").parquet(target)

def copy():
    spark.read.parquet(target).write.mode("overwrite").parquet(target + "-copy")

def rate(act):
    act()
    began = time.monotonic()
    act()
    return events / (time.monotonic() - began)

acts = (count, group, write, copy)
print(json.dumps({act.__name__: rate(act) for act in acts}))
"""


def measure(events: int) -> dict[str, float]:
    collected: dict[str, float] = {}
    read: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        collecting.fill(place / "journals" / "0", events)
        more = ["--spark", json.dumps({"master": MASTER})]
        for turn in range(TURNS):
            for name, sink in (
                ("count", "noop"),
                ("write", f'files: {{path: "{place}/lake{turn}"}}'),
            ):
                found = collecting.measure(
                    place, f"{name}{turn}", "at-least-once", sink, events, more=more
                )
                collected[name] = max(collected.get(name, 0.0), found["rate"])
            for name, rate in _read(place, events).items():
                read[name] = max(read.get(name, 0.0), rate)
    return {
        **{f"collector_{name}_events_per_second": round(of) for name, of in collected.items()},
        **{f"session_{name}_events_per_second": round(of) for name, of in read.items()},
        "count_ratio": round(read["count"] / collected["count"], 2),
        "group_ratio": round(read["group"] / collected["count"], 2),
        "write_ratio": round(read["write"] / collected["write"], 2),
        "copy_ratio": round(read["copy"] / collected["write"], 2),
    }


def _read(place: Path, events: int) -> dict[str, float]:
    """Rates of what a session does."""
    with collecting.served(place, FLOW) as (hosts, store, _):
        text = collecting.FLOW.format(
            flow=FLOW, delivery="at-least-once", filters="[]", sink="noop"
        )
        revision = records.Revision(text=text, author="bench", reason="", time=0.0)
        store.write(paths.revision(FLOW, "1"), revision, ABSENT)
        command = [sys.executable, "-c", SESSION, MASTER, hosts, FLOW, str(place / "read")]
        done = subprocess.run(
            [*command, str(events)], stdout=subprocess.PIPE, check=True, text=True
        )
    shutil.rmtree(place / FLOW)
    found: dict[str, float] = json.loads(done.stdout)
    return found
