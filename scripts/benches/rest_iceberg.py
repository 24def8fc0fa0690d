"""Time of a commit to an Iceberg table after many others, while snapshots expire.

Commits are as a collector makes them, with one file each. The result is the median of the last 50.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from flumeng.connectors.api.sink import BatchId, TaskRevision
from flumeng.connectors.lakehouse.iceberg import IcebergSink
from flumeng.connectors.lakehouse.options import Catalog, Iceberg, Snapshots
from tests.testkit.servers.tables import staged

LAST = 50
ROWS = pa.table({"body": pa.array([b"x"] * 10, pa.binary()), "host": ["h"] * 10})


def measure(snapshots: int = 1000) -> dict[str, float]:
    """Snapshots of the last second are kept, and the newest 20: as many as a flow with an interval
    of three minutes has by default."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        catalog = Catalog("sql", f"sqlite:///{place}/catalog.db", warehouse=f"{place}/lake")
        options = Iceberg(catalog, "web.events", snapshots=Snapshots(seconds=1.0))
        sink = IcebergSink(options, TaskRevision("web", "collect.0", 1))
        spent = [_commit(sink, number) for number in range(snapshots + LAST)]
    return {
        f"iceberg_commit_ms_at_{snapshots}_snapshots": round(statistics.median(spent[-LAST:]), 1)
    }


def _commit(sink: IcebergSink, number: int) -> float:
    commit = sink.written(staged(sink, ROWS)).commit
    assert commit is not None
    began = time.perf_counter()
    commit(BatchId("web", number))
    return 1000 * (time.perf_counter() - began)
