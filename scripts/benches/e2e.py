"""How fast a real collector empties a journal: into nothing, and into Parquet files.

A journal of 200-byte syslog lines is written once. Then, for each sink, ZooKeeper, an ingest worker
that serves the journal and a collector run as their own processes, spoken to as a node would. Timed
is the steady state: events and seconds between the first ack that moved and the last ack, so that
the start of Spark and its first, cold batch do not count. The Parquet files are read back: every
event must be there once.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from benches.processes import cpu_seconds, family
from benches.senders import LINE_BYTES, make_lines
from flumeng.journal.journal import Journal
from flumeng.journal.schema import EVENT_SCHEMA
from flumeng.node.protocol import Message, decode, encode
from flumeng.store import ABSENT, Store, tree
from flumeng.store.zookeeper import connect
from flumeng.testing import RealZooKeeper
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN, flow_folders

JOURNAL = "bench.n1.0.00000000"
NODE = "n1"
FRAME_EVENTS = 20_000
DISTINCT_LINES = 100_000
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 180.0
FIRST_TIME = 1_795_000_000_000_000
FLOW = """
flow: {flow}
sources:
  - syslog: {{listen: "127.0.0.1:0"}}
delivery: {delivery}
sinks:
  - {sink}
batch: {{seconds: 1 s}}
"""


def run(events: int = 12_000_000) -> dict[str, object]:
    """Measure both sinks over the same journal; rates are events a second, sizes decimal MB."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        _fill(place / "journals" / "0", events)
        noop = _measure(place, "noop", "at-least-once", "noop", events)
        lake = place / "lake"
        files = f'files: {{path: "{lake}/dt=%Y-%m-%d/hour=%H", format: parquet}}'
        parquet = _measure(place, "parquet", "exactly-once", files, events)
        _check(lake, events)
        parquet_mb = sum(file.stat().st_size for file in lake.rglob("*.parquet")) / 1e6
    return {
        "events": events,
        "line_bytes": LINE_BYTES,
        "timed": "from the first ack that moved to the last ack",
        "events_per_second_noop": round(noop["rate"]),
        "events_per_second_parquet": round(parquet["rate"]),
        "mb_per_second_noop": round(noop["rate"] * LINE_BYTES / 1e6, 1),
        "mb_per_second": round(parquet["rate"] * LINE_BYTES / 1e6, 1),
        "events_timed_noop": noop["timed"],
        "events_timed_parquet": parquet["timed"],
        "cpu_seconds_per_million_noop": noop["cpu"],
        "cpu_seconds_per_million": parquet["cpu"],
        "rss_mb": parquet["rss_mb"],
        "parquet_mb": round(parquet_mb, 1),
    }


def _fill(directory: Path, events: int) -> None:
    """The journal, with frames as an ingest worker makes them."""
    assert events % FRAME_EVENTS == 0, f"events must be a multiple of {FRAME_EVENTS}"
    directory.mkdir(parents=True)
    lines = pa.array([line.rstrip() for line in make_lines(DISTINCT_LINES)], pa.binary())
    peers = pa.array([f"192.0.2.{peer}" for peer in range(1, 9)])
    journal = Journal.create(directory, JOURNAL)
    for first in range(0, events, FRAME_EVENTS):
        numbers = np.arange(first, first + FRAME_EVENTS)
        hosts = peers.take(pa.array(numbers // 100 % len(peers)))
        keys = pa.array(["source", "peer"] * FRAME_EVENTS)
        values = pa.array([item for host in hosts.to_pylist() for item in ("syslog", host)])
        offsets = pa.array(np.arange(0, 2 * FRAME_EVENTS + 1, 2), pa.int32())
        columns = [
            lines.take(pa.array(numbers % len(lines))),
            pa.array(FIRST_TIME + numbers, EVENT_SCHEMA.field("ts").type),
            hosts,
            pa.MapArray.from_arrays(offsets, keys, values),
        ]
        journal.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
    journal.sync()
    journal.close()


def _measure(place: Path, flow: str, delivery: str, sink: str, events: int) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = place / flow
        zookeeper = RealZooKeeper(folder / "zookeeper")
        zookeeper.start()
        assert zookeeper.process
        stack.callback(zookeeper.kill)
        hosts = f"{zookeeper.address}/bench"
        store = connect(hosts)
        stack.callback(store.close)
        (folder / "data").mkdir()
        (folder / "data" / "journals").symlink_to(place / "journals")
        data = ["--data", str(folder / "data"), "--node", NODE]
        ingest = stack.enter_context(_Child("ingest", [*data, "--host", "127.0.0.1"]))
        _enter(store, flow, ingest.receive("ready")["address"])
        collector = stack.enter_context(_Child("collector", [*data, "--zk", hosts]))
        collector.receive("ready")
        spec = FLOW.format(flow=flow, delivery=delivery, sink=sink)
        task = {"flow": flow, "task": "collect.0", "epoch": 1, "revision": 1, "spec": spec}
        task |= {"partitions": [JOURNAL], "state": "running"}
        collector.send({"type": "configure", "number": 1, "tasks": [task]})
        parts = {
            "ingest": ingest.pid,
            "collector": collector.pid,
            "zookeeper": zookeeper.process.pid,
        }
        found = _watch(store, flow, events, parts)
        collector.send({"type": "stop", "drain_seconds": 5})
        return found


def _enter(store: Store, flow: str, address: str) -> None:
    """What master and node write into ZooKeeper."""
    tree.init(store)
    store.write(paths.flow(flow), records.Flow(revision=1), ABSENT)
    for folder in flow_folders(flow):
        store.write(folder, None, ABSENT)
    journal = records.Journal(flow=flow, node=NODE, primary=NODE, term=1, in_sync=(NODE,))
    store.write(paths.journal(JOURNAL), journal, ABSENT)
    live = records.LiveNode(
        uuid="", incarnation="", addresses=(address,), pid=0, version="", since=time.time()
    )
    store.write(paths.live_node(NODE), live, ABSENT)


def _watch(store: Store, flow: str, events: int, parts: dict[str, int]) -> dict[str, Any]:
    """Follow the ack from its first move to the end."""
    acked = 0
    first: tuple[int, float, float] | None = None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while acked < events:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{acked} of {events} events after {PATIENCE_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
        ack = store.read(paths.ack(flow, CURSOR_MAIN, JOURNAL))
        acked = ack.value.offset if ack else 0
        if acked and first is None:
            first = acked, time.monotonic(), _cpu_of(parts.values())
    assert first is not None
    timed, seconds = events - first[0], time.monotonic() - first[1]
    assert timed > 0, f"{events} events are one batch: take more"
    return {
        "rate": timed / seconds,
        "timed": timed,
        "cpu": round((_cpu_of(parts.values()) - first[2]) / timed * 1e6, 3),
        "rss_mb": {name: mb for part, pid in parts.items() for name, mb in _peaks(part, pid)},
    }


def _check(lake: Path, events: int) -> None:
    table = ds.dataset(lake, format="parquet").to_table(columns=["seq"])
    seqs = np.sort(table["seq"].to_numpy())
    assert np.array_equal(seqs, np.arange(events)), f"{len(seqs)} rows, {events} events"


class _Child:
    """A child of the node, spoken to over its pipes."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", f"flumeng.{name}", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid

    def send(self, message: Message) -> None:
        assert self._process.stdin
        self._process.stdin.write(encode(message))
        self._process.stdin.flush()

    def receive(self, kind: str) -> Message:
        """The first message of that kind; those behind it are not looked at."""
        assert self._process.stdout
        for line in self._process.stdout:
            message = decode(line)
            if message["type"] == kind:
                Thread(target=lambda: list(self._process.stdout or ()), daemon=True).start()
                return message
        raise RuntimeError("the child ended")

    def __enter__(self) -> _Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=60)


def _cpu_of(heads: Iterable[int]) -> float:
    return sum(cpu_seconds(pid) for head in heads for pid in family(head))


def _peaks(part: str, head: int) -> Iterator[tuple[str, float]]:
    """Name and peak RSS in MB of a part of the system and of each process below it."""
    workers = itertools.count(1)
    for pid in family(head):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
        if not peaks:
            continue  # it has ended
        name = part
        if pid != head:
            is_java = b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
            name = f"{part}: JVM" if is_java else f"{part}: python {next(workers)}"
        yield name, round(peaks[0] * 1024 / 1e6, 1)
