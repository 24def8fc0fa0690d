"""Four programs write stack traces, line by line, into four files of one journal, while collectors
and executors are killed: each trace is in the lake whole, and once.

``FLUMENG_CHAOS_SECONDS`` asks for the long form.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import (
    FLOW,
    Cluster,
    LakeWatcher,
    chaos_seconds,
    chaos_seed,
    kill_at_random,
    on_disk,
)
from tests.testkit.waiting import wait_for

PROGRAMS = 4
TEXT = """
flow: {flow}
sources: [tail: {{paths: ["{logs}/*.log"]}}]
delivery: exactly-once
batch: {{seconds: 0.3, events: 50000}}
multiline: {{preset: java, timeout_seconds: 10 s}}
sinks: [files: {{{lake}}}]
"""


class Program(threading.Thread):
    """Writes traces in pieces that may end anywhere, until ``enough`` is set."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(name=path.stem, daemon=True)
        self.enough = threading.Event()
        self.traces: list[str] = []
        self._path = path
        self._chance = random.Random(seed)

    def run(self) -> None:
        with self._path.open("wb", buffering=0) as log:
            while not self.enough.is_set():
                self.traces.append(self._trace(len(self.traces)))
                text = f"{self.traces[-1]}\n".encode()
                cut = self._chance.randint(0, len(text))
                for piece in (text[:cut], text[cut:]):
                    log.write(piece)
                    time.sleep(self._chance.choice([0.0, 0.002, 0.02]))

    def _trace(self, number: int) -> str:
        calls = [
            f"\tat app.Server.call(Server.java:{n})" for n in range(self._chance.randint(0, 9))
        ]
        return "\n".join(
            [
                f"2026-11-20 10:00:00,000 ERROR {self.name} request {number} failed",
                f"java.lang.IllegalStateException: {self.name} {number}",
                *calls,
                "Caused by: java.io.IOException: broken pipe",
                "\tat java.net.Socket.write(Socket.java:7)",
                "\t... 12 more",
            ]
            if self._chance.random() < 0.9
            else [f"2026-11-20 10:00:00,000 INFO {self.name} request {number} done"]
        )


@pytest.mark.long
def test_each_trace_is_in_the_lake_whole_and_once(cluster: Cluster, tmp_path: Path) -> None:
    seed = chaos_seed()
    logs = tmp_path / "logs"
    logs.mkdir()
    lake = on_disk(tmp_path / "lake")
    store = connect(cluster.hosts)
    text = TEXT.format(flow=FLOW, logs=logs, lake=lake.options)
    apply_flow(Operator(store, "test", "", 0.0), text)
    programs = [Program(logs / f"app{n}.log", seed + n) for n in range(PROGRAMS)]
    for program in programs:
        program.start()
    watcher = LakeWatcher(store, lake)
    wait_for(watcher.paths, "nothing reaches the lake")
    assert cluster.kill("collector")
    if seconds := chaos_seconds():
        until = time.monotonic() + seconds
        kill_at_random(cluster, random.Random(seed), ("collector", "executor"), until=until)
    for program in programs:
        program.enough.set()
        program.join(timeout=60)
    lines = sum(trace.count("\n") + 1 for program in programs for trace in program.traces)
    watcher.settle(events=lines)

    assert len(watcher.acks()) == 1, "the test is about one journal"
    table = watcher.table(["body", "attrs"])
    bodies = Counter(body.decode() for body in table["body"].to_pylist())
    assert bodies == Counter(trace for program in programs for trace in program.traces)
    counts = pc.map_lookup(table["attrs"].combine_chunks(), "lines", "first").to_pylist()
    told = zip(table["body"].to_pylist(), counts, strict=True)
    assert all(int(count) == body.count(b"\n") + 1 for body, count in told)
    store.close()
