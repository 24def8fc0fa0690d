"""From the end of a node's session to the first ack that its successor gets accepted.

Three real masters, one real ZooKeeper, 20 nodes whose collectors are real but for Spark, and 1,000
partitions in 100 tasks. Again and again one node goes as a crash takes it, and comes back once its
tasks run elsewhere. The clock starts when its session is closed, so a session's timeout is not in.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import ABSENT, Put, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.events.journal_names import new_id
from tests.testkit.store import RealZooKeeper
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Cluster, Journal

MASTERS = 3
NODES = 20
PROCESSES = 4
TASKS = 100
PARTITIONS = 1000
PATIENCE_SECONDS = 60.0
FLOW = f"""
flow: bench
sources: [{{syslog: {{listen: "127.0.0.1:0"}}}}]
place: {{ingest: {{labels: {{role: nobody}}}}, collect: {{tasks: {TASKS}}}}}
delivery: at-least-once
sinks: [noop]
"""
PARTS = ("watch", "read", "plan", "write", "node_start", "first_batch")

Event = dict[str, Any]


@dataclass
class Trace:
    """What the processes have said, and by that who owns which task under which epoch."""

    events: list[Event] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    heard: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)

    def follow(self, process: subprocess.Popen[str]) -> None:
        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self.heard.put(json.loads(line))

        threading.Thread(target=read, daemon=True).start()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            self.listen(0.05)

    def listen(self, seconds: float) -> None:
        try:
            event = self.heard.get(timeout=seconds)
        except queue.Empty:
            return
        self.events.append(event)
        if event["what"] == "acked":
            self.owners[event["task"]] = event["node"]
            self.epochs[event["task"]] = event["epoch"]


def run(rounds: int = 20) -> dict[str, object]:
    """Milliseconds at the median and the 99th percentile over all tasks of all rounds; in each
    round a node ends."""
    with _cluster() as (store, trace, nodes):
        trace.until(lambda: len(trace.owners) == TASKS, "all tasks to be acked")
        samples: list[dict[str, float]] = []
        for number in range(rounds):
            _settle(store, trace)
            owners = set(trace.owners.values())
            busy = [name for name in nodes if name in owners]
            samples += _fail_one(trace, nodes, busy[number % len(busy)])
        _settle(store, trace)
        _check(store)
    control = sorted(sum(s[part] for part in PARTS[:-1]) for s in samples)
    total = sorted(sum(s.values()) for s in samples)
    return {
        "masters": MASTERS,
        "nodes": NODES,
        "partitions": PARTITIONS,
        "failures": rounds,
        "tasks_moved": len(samples),
        "control_plane_ms_p50": _ms(median(control)),
        "control_plane_ms_p99": _ms(control[len(control) * 99 // 100]),
        "total_ms_p50": _ms(median(total)),
        "parts_ms": {part: _ms(median(s[part] for s in samples)) for part in PARTS},
    }


@contextmanager
def _cluster() -> Iterator[tuple[Store, Trace, dict[str, subprocess.Popen[str]]]]:
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as folder:
        server = RealZooKeeper(Path(folder) / "zookeeper")
        server.start()
        hosts = f"{server.address}/bench"
        store = connect(hosts)
        trace = Trace()
        try:
            _prepare(store)
            nodes = {}
            with Path(folder, "log").open("ab") as log:

                def start(*arguments: object) -> subprocess.Popen[str]:
                    command = [sys.executable, "-m", "benches.traced", *map(str, arguments)]
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
                    processes.append(process)
                    trace.follow(process)
                    return process

                for number in range(MASTERS):
                    start("master", hosts, f"m{number}")
                share = NODES // PROCESSES
                for first in range(0, NODES, share):
                    process = start("nodes", hosts, folder, first, share)
                    nodes.update({f"n{number}": process for number in range(first, first + share)})
            yield store, trace, nodes
        except AssertionError:
            print(Path(folder, "log").read_text()[-5000:], file=sys.stderr)
            raise
        finally:
            for process in processes:
                process.kill()
                process.wait()
            store.close()
            server.kill()


def _prepare(store: Store) -> None:
    tree.init(store)
    found = store.read(paths.cluster())
    settings = replace(found.value if found else Cluster(), throttles={"balance": NODES})
    assert found is not None
    store.write(paths.cluster(), settings, found.version)
    apply_flow(Operator(store, "bench", "", time.time()), FLOW)
    journal = Journal(flow="bench", node="h", primary="h", term=1, in_sync=("h",))
    names = [new_id("bench", "h", 0) for _ in range(PARTITIONS)]
    for start in range(0, PARTITIONS, 100):
        part = names[start : start + 100]
        store.commit([Put(paths.journal(name), journal, ABSENT) for name in part])


def _settle(store: Store, trace: Trace) -> None:
    """Every node is there, every task acks where the plan has it, and nothing moves."""

    def quiet() -> bool:
        tasks = _planned(store)
        assigned = all(task.state == "assigned" for task in tasks.values())
        owned = {
            name: (trace.owners[f"bench/{name}"], trace.epochs[f"bench/{name}"]) for name in tasks
        }
        same = all(owned[name] == (task.node, task.epoch) for name, task in tasks.items())
        live = store.children(paths.live_nodes())
        return assigned and same and len(tasks) == TASKS and len(live) == NODES

    trace.until(quiet, "the end of all moves")


def _fail_one(
    trace: Trace, nodes: dict[str, subprocess.Popen[str]], node: str
) -> list[dict[str, float]]:
    """End ``node``; the parts of the time, for each task that it had, in seconds."""
    tasks = {task for task, owner in trace.owners.items() if owner == node}
    seen = len(trace.events)
    _order(nodes, "leave", node)
    trace.until(lambda: all(trace.owners[task] != node for task in tasks), "successors")
    trace.listen(0.2)
    while not trace.heard.empty():
        trace.listen(0.0)
    news = trace.events[seen:]
    (gone,) = (event["at"] for event in news if event["what"] == "gone")
    samples = [_parts(gone, [e for e in news if e["at"] >= gone], task) for task in tasks]
    _order(nodes, "join", node)
    return samples


def _parts(gone: float, news: Iterable[Event], task: str) -> dict[str, float]:
    own = [event for event in news if event.get("task") == task]
    epoch = max(event["epoch"] for event in own)
    moments = {e["what"]: e for e in own if e["epoch"] == epoch}
    successor = moments["acked"]["node"]
    commits = [event for event in news if event["what"] == "commit"]
    told = max(
        (e for e in commits if successor in e["told"] and e["began"] < moments["claimed"]["at"]),
        key=lambda e: float(e["at"]),
    )
    plan = max(
        (e for e in commits if e["plan"] and e["at"] <= told["at"]), key=lambda e: float(e["at"])
    )
    edges = [
        gone,
        plan["first_read"],
        plan["last_read"],
        plan["began"],
        min(told["at"], moments["claimed"]["at"]),
        moments["claimed"]["at"],
        moments["acked"]["at"],
    ]
    return {part: end - start for part, start, end in zip(PARTS, edges, edges[1:], strict=False)}


def _order(nodes: dict[str, subprocess.Popen[str]], order: str, node: str) -> None:
    pipe = nodes[node].stdin
    assert pipe is not None
    pipe.write(f"{order} {node}\n")
    pipe.flush()


def _planned(store: Store) -> dict[str, Any]:
    found = read_plan(store, "bench")
    return dict(found.value.tasks) if found else {}


def _check(store: Store) -> None:
    """Every partition is acked, under the epoch that its task has now."""
    epochs = {name: task.epoch for task in _planned(store).values() for name in task.partitions}
    assert len(epochs) == PARTITIONS, f"{len(epochs)} partitions are planned"
    found = store.read_many([paths.ack("bench", CURSOR_MAIN, name) for name in epochs])
    for (name, epoch), ack in zip(epochs.items(), found, strict=True):
        assert ack is not None, f"{name} was never acked"
        assert ack.value.epoch == epoch, f"{name} is acked under {ack.value.epoch}, not {epoch}"
        assert ack.value.offset > 0, f"{name} was never acked"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
