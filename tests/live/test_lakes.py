"""The promise of Delta and Iceberg: whichever process is killed, each event is in both tables once.

A rotating file is collected into a table of each, while Spark's workers are killed at random
moments and the collector between the commits of the two tables, and another process appends to both
all the time, is frozen, and goes on. ``FLUMENG_CHAOS_SECONDS`` makes it long, and then the rest of
the cluster is killed too.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import (
    CHUNK,
    KINDS,
    PACE_SECONDS,
    Cluster,
    Watcher,
    chaos_seconds,
    chaos_seed,
    kill_at_random,
    numbers,
    write_rotating,
)
from tests.testkit.daemons import start_logged
from tests.testkit.servers.tables import DeltaDirectory, IcebergDirectory

FLOW_TEXT = """
flow: chaos
sources:
  - tail: {{paths: ["{logs}/app.log*"]}}
delivery: exactly-once
batch: {{seconds: 0.5, events: 50000}}
sinks:
  - delta: {{path: "{folder}/delta", partition_by: ["day(ts)"]}}
  - iceberg:
      catalog: {{type: sql, uri: "sqlite:///{folder}/catalog.db", warehouse: "{folder}/lake"}}
      table: web.events
"""
STRANGER = """
import sys, time
from pathlib import Path
import pyarrow as pa
from tests.testkit.servers.tables import DeltaDirectory, IcebergDirectory
lakes = [DeltaDirectory(Path(sys.argv[1])), IcebergDirectory(Path(sys.argv[1]))]
rows = {}
while True:
    for lake in lakes:
        try:
            if lake not in rows:
                given = {"body": [b"stranger"]}
                schema = lake.rows().schema
                rows[lake] = pa.table([given.get(n, [None]) for n in schema.names], schema)
            lake.append(rows[lake])
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    time.sleep(float(sys.argv[2]))
"""


class Stranger:
    """Another process that appends to both tables once they are there."""

    def __init__(self, folder: Path, pause_seconds: float) -> None:
        self._process = start_logged(
            folder / "stranger.log", sys.executable, "-c", STRANGER, str(folder), str(pause_seconds)
        )

    def freeze_and_thaw(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Callable[[float], Stranger]]:
    started = []

    def start(pause_seconds: float) -> Stranger:
        started.append(Stranger(tmp_path, pause_seconds))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.mark.long
def test_every_event_is_in_both_tables_once(
    cluster: Cluster, stranger: Callable[[float], Stranger], tmp_path: Path
) -> None:
    seed, seconds = chaos_seed(), chaos_seconds()
    lines = round(max(seconds, 20) / (2 * PACE_SECONDS)) * CHUNK
    logs = tmp_path / "logs"
    logs.mkdir()
    store = connect(cluster.hosts)
    text = FLOW_TEXT.format(logs=logs, folder=tmp_path)
    apply_flow(Operator(store, "test", "", 0.0), text)
    watcher = Watcher(store)
    writer = threading.Thread(target=write_rotating, args=(logs, lines), daemon=True)
    writer.start()
    other = stranger(3.0 if seconds else 0.5)
    kill_at_random(
        cluster,
        random.Random(seed),
        (*KINDS, "executor") if seconds else ("executor",),
        {
            "stranger": other.freeze_and_thaw,
            "collector": lambda: kill_between_commits(cluster, tmp_path / "delta" / "_delta_log"),
        },
        times=1,
        until=time.monotonic() + seconds,
    )
    writer.join()
    watcher.settle(events=lines)
    other.stop()
    store.close()

    for lake in (DeltaDirectory(tmp_path), IcebergDirectory(tmp_path)):
        rows = lake.rows()
        strange = Counter(rows["body"].to_pylist())[b"stranger"]
        assert strange > 0, "no other writer ever came between"
        assert sorted(numbers(rows["body"], "file")) == list(range(lines))
        assert rows.num_rows == lines + strange
        assert counted(rows) == [(lines, lines)]
    orphans = len(list((tmp_path / "delta").rglob("*.parquet"))) - len(
        DeltaTable(str(tmp_path / "delta")).file_uris()
    )
    print(f"{lines} events, {orphans} orphans")


def kill_between_commits(cluster: Cluster, log: Path) -> None:
    """Kill the collector with SIGKILL when the first table has its batch, and before the ack."""
    deadline = time.monotonic() + 120
    known = set(log.glob("*.json"))
    while True:
        assert time.monotonic() < deadline, "no batch is committed"
        time.sleep(0.001)
        new = set(log.glob("*.json")) - known
        known |= new
        if any(b'"txn"' in file.read_bytes() for file in new):
            cluster.kill("collector")
            return


def counted(rows: pa.Table) -> list[tuple[int, int]]:
    """The number of our rows and of their different ids, as another engine counts them."""
    ours = duckdb.from_arrow(rows).filter("journal is not null")
    found = ours.aggregate("count(*), count(distinct (journal, seq))")
    return [tuple(row) for row in found.fetchall()]
