"""How fast a real collector empties a journal: into nothing, and into Parquet files.

A journal of 200-byte syslog lines is written once. Then, for each sink, ZooKeeper, an ingest worker
that serves the journal and a collector run as their own processes, spoken to as a node would. Timed
is the steady state: events and seconds between the first ack that moved and the last ack, so that
the start of Spark and its first, cold batch do not count. The Parquet files are read back: every
event must be there once.

``parquet_cpu_ratio`` is the CPU time of all processes over that of one plain process which copies
the same journal into Parquet (``plain_copy``), each for an event.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
        plain = _plain_copy(place / "journals" / "0" / JOURNAL, place / "plain.parquet", events)
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
        "cpu_seconds_per_million_by_part_noop": noop["cpu_of"],
        "cpu_seconds_per_million_by_part": parquet["cpu_of"],
        "cpu_seconds_per_million_plain": round(plain["cpu_seconds"], 3),
        "cpu_seconds_per_million_plain_writing": round(plain["writing"], 3),
        "parquet_cpu_ratio": round(parquet["cpu"] / plain["cpu_seconds"], 2),
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
    first: tuple[int, float, dict[str, float]] | None = None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while acked < events:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{acked} of {events} events after {PATIENCE_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
        ack = store.read(paths.ack(flow, CURSOR_MAIN, JOURNAL))
        acked = ack.value.offset if ack else 0
        if acked and first is None:
            first = acked, time.monotonic(), _cpu_of(parts)
    assert first is not None
    timed, seconds = events - first[0], time.monotonic() - first[1]
    assert timed > 0, f"{events} events are one batch: take more"
    used = {
        name: (cpu - first[2].get(name, 0.0)) / timed * 1e6 for name, cpu in _cpu_of(parts).items()
    }
    return {
        "rate": timed / seconds,
        "timed": timed,
        "cpu": round(sum(used.values()), 3),
        "cpu_of": {name: round(cpu, 3) for name, cpu in used.items()},
        "rss_mb": {name: mb for part, pid in parts.items() for name, mb in _peaks(part, pid)},
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


def _cpu_of(parts: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds so far of each part: of a collector its own, the JVM's and that of all Spark's
    Python workers."""
    used: defaultdict[str, float] = defaultdict(float)
    for part, head in parts.items():
        for pid in family(head):
            used[part if pid == head else f"{part}: {_kind(pid)}"] += cpu_seconds(pid)
    return used


def _kind(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    return "JVM" if b"java" in command else "python"


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
            name = f"{part}: {_kind(pid)}"
            name += f" {next(workers)}" if name.endswith("python") else ""
        yield name, round(peaks[0] * 1024 / 1e6, 1)
