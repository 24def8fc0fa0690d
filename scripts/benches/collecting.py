"""A real collector that empties a journal, run as a process as a node runs it.

A journal of 200-byte syslog lines is written once. Then ZooKeeper, an ingest worker that serves it
and a collector run as their own processes. Timed is the steady state: events and seconds between
the first ack that moved and the last ack, so that the start of Spark and its first, cold batch do
not count.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from benches.processes import cpu_seconds, family
from benches.senders import make_lines
from flumeng.agent.node.protocol import Message, decode, encode
from flumeng.control.zookeeper import ABSENT, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from tests.testkit.daemons import module_of
from tests.testkit.store import RealZooKeeper
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
filters: {filters}
sinks:
  - {sink}
batch: {{seconds: 1 s}}
"""


def fill(directory: Path, events: int) -> None:
    """Write the journal into ``directory``, ``PLACE/journals/0``, with frames as an ingest worker
    makes them."""
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


def measure(
    place: Path,
    flow: str,
    delivery: str,
    sink: str,
    events: int,
    *,
    filters: str = "[]",
    more: Sequence[str] = (),
    warm: int = 1,
) -> dict[str, Any]:
    """Collect the journal below ``place`` into ``sink``, as a flow file says it, ``filters`` too.
    ``more`` are arguments of the collector. Timed is from the first ack of ``warm`` events or more.

    Gives ``rate`` (events a second), ``timed`` (so many events), ``cpu`` (seconds for a million
    events), ``cpu_of`` and ``rss_mb`` (of each process). Each ``flow`` of a place has another name.
    """
    with _running(place, flow, delivery, sink, more, filters=filters) as (store, parts, _):
        return _watch(store, flow, events, parts, warm)


def first_ack_seconds(
    place: Path, flow: str, delivery: str, sink: str, *, more: Sequence[str] = ()
) -> float:
    """The same, from the start of the collector's process to the first ack that moves."""
    with _running(place, flow, delivery, sink, more) as (store, _, began):
        deadline = began + PATIENCE_SECONDS
        while not _acked(store, flow):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no ack after {PATIENCE_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - began


@contextmanager
def served(place: Path, flow: str) -> Iterator[tuple[str, Store, dict[str, int]]]:
    """Serve the journal below ``place`` to readers of the flow. Gives the address of the cluster,
    its store, and the process of each part."""
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
        ingest = stack.enter_context(Child("ingest", [*data, "--host", "127.0.0.1"]))
        _enter(store, flow, ingest.receive("ready")["address"])
        yield hosts, store, {"ingest": ingest.pid, "zookeeper": zookeeper.process.pid}


@contextmanager
def _running(
    place: Path, flow: str, delivery: str, sink: str, more: Sequence[str], *, filters: str = "[]"
) -> Iterator[tuple[Store, dict[str, int], float]]:
    """Gives the store, the process of each part, and when the collector was started."""
    with served(place, flow) as (hosts, store, parts):
        data = ["--data", str(place / flow / "data"), "--node", NODE]
        began = time.monotonic()
        with Child("collector", [*data, "--zk", hosts, *more]) as collector:
            collector.receive("ready")
            spec = FLOW.format(flow=flow, delivery=delivery, filters=filters, sink=sink)
            task = {"flow": flow, "task": "collect.0", "epoch": 1, "revision": 1, "spec": spec}
            task |= {"partitions": [JOURNAL], "state": "running"}
            collector.send({"type": "configure", "number": 1, "tasks": [task]})
            yield store, {**parts, "collector": collector.pid}, began
            collector.send({"type": "stop", "drain_seconds": 5})


def _acked(store: Store, flow: str) -> int:
    ack = store.read(paths.ack(flow, CURSOR_MAIN, JOURNAL))
    return ack.value.offset if ack else 0


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


def _watch(
    store: Store, flow: str, events: int, parts: dict[str, int], warm: int
) -> dict[str, Any]:
    """Follow the ack to the end, and time it from ``warm`` on."""
    acked = 0
    first: tuple[int, float, dict[str, float]] | None = None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while acked < events:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{acked} of {events} events after {PATIENCE_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
        acked = _acked(store, flow)
        if acked >= warm and first is None:
            first = acked, time.monotonic(), cpu_of(parts)
    assert first is not None
    timed, seconds = events - first[0], time.monotonic() - first[1]
    assert timed > 0, f"{events} events are one batch: take more"
    used = {
        name: (cpu - first[2].get(name, 0.0)) / timed * 1e6 for name, cpu in cpu_of(parts).items()
    }
    return {
        "rate": timed / seconds,
        "timed": timed,
        "cpu": round(sum(used.values()), 3),
        "cpu_of": {name: round(cpu, 3) for name, cpu in used.items()},
        "rss_mb": {name: mb for part, pid in parts.items() for name, mb in _peaks(part, pid)},
    }


class Child:
    """A child of the node, spoken to over its pipes."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", module_of(name), *arguments]
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

    def __enter__(self) -> Child:
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


def cpu_of(parts: Mapping[str, int]) -> dict[str, float]:
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
