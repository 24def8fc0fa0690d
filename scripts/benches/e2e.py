"""How fast a real collector empties a journal: into nothing, and into Parquet files.

See ``collecting`` for what is run. Timed is the second half of the events: Spark's JVM compiles its
code in the first, as much for a few events as for many. The Parquet files are read back: every
event must be there once.

``parquet_cpu_ratio`` is the CPU time of all processes over that of one plain process which copies
the same journal into Parquet (``plain_copy``), each for an event.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds

from benches.collecting import JOURNAL, fill, measure
from benches.senders import LINE_BYTES


def run(events: int = 12_000_000) -> dict[str, object]:
    """Measure both sinks over the same journal; rates are events a second, sizes decimal MB."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        fill(place / "journals" / "0", events)
        noop = measure(place, "noop", "at-least-once", "noop", events, warm=events // 2)
        lake = place / "lake"
        files = f'files: {{path: "{lake}/dt=%Y-%m-%d/hour=%H", format: parquet}}'
        parquet = measure(place, "parquet", "exactly-once", files, events, warm=events // 2)
        _check(lake, events)
        plain = _plain_copy(place / "journals" / "0" / JOURNAL, place / "plain.parquet", events)
        parquet_mb = sum(file.stat().st_size for file in lake.rglob("*.parquet")) / 1e6
    return {
        "events": events,
        "line_bytes": LINE_BYTES,
        "timed": "the second half of the events",
        "events_per_second_noop": round(noop["rate"]),
        "events_per_second_parquet": round(parquet["rate"]),
        "mb_per_second_noop": round(noop["rate"] * LINE_BYTES / 1e6, 1),
        "mb_per_second": round(parquet["rate"] * LINE_BYTES / 1e6, 1),
        "events_timed_noop": noop["timed"],
        "events_timed_parquet": parquet["timed"],
        "cpu_seconds_per_million_noop": noop["cpu"],
        "cpu_seconds_per_million": parquet["cpu"],
        "cpu_seconds_per_million_by_part_noop": noop["cpu_of"],
        "cpu_seconds_per_million_by_part": parquet["cpu_of"],
        "cpu_seconds_per_million_plain": round(plain["cpu_seconds"], 3),
        "cpu_seconds_per_million_plain_writing": round(plain["writing"], 3),
        "parquet_cpu_ratio": round(parquet["cpu"] / plain["cpu_seconds"], 2),
        "rss_mb": parquet["rss_mb"],
        "parquet_mb": round(parquet_mb, 1),
    }


def _plain_copy(journal: Path, target: Path, events: int) -> dict[str, float]:
    """CPU seconds for a million events: all, and those of writing."""
    command = [sys.executable, "-m", "benches.plain_copy", str(journal), str(target)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert found.pop("events") == events
    _check(target, events)
    return {name: seconds / events * 1e6 for name, seconds in found.items()}


def _check(lake: Path, events: int) -> None:
    table = ds.dataset(lake, format="parquet").to_table(columns=["seq"])
    seqs = np.sort(table["seq"].to_numpy())
    assert np.array_equal(seqs, np.arange(events)), f"{len(seqs)} rows, {events} events"
