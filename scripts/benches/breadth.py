"""A thousand flows on one node: what they cost while nothing comes, and whether they keep up.

``flumeng standalone`` runs ZooKeeper, a master and a node with real processes; every flow has a
syslog source over UDP and a Parquet sink of its own, all applied with one command. Idle cost is the
CPU time of all processes, in percent of one core. Then each flow gets some events a second; each
carries its number and the time at which it was sent. An event is visible when its file has been
renamed into place, which the file system notes as the file's change time. What is missing at the
end, or there twice, is counted.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow.parquet as pq

from benches.processes import Processes, cpu_seconds, family, rss_mb, threads
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

FLUMENG = Path(sys.executable).with_name("flumeng")
FLOW = """
flow: {name}
sources: [{{syslog: {{listen: "127.0.0.1:{port}", protocol: udp}}}}]
delivery: exactly-once
sinks: [{{files: {{path: "{lake}", format: parquet}}}}]
batch: {{seconds: 1 s}}
"""
PATIENCE_SECONDS = 600.0
QUIET_SECONDS = 5.0


def run(flows: int = 1000, idle: int = 30, seconds: int = 60, rate: int = 10) -> dict[str, object]:
    """``flows`` flows, looked at for ``idle`` seconds, then for ``seconds`` with ``rate`` events/s
    each."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        return _measure(Path(folder), flows, idle, seconds, rate)


def _measure(folder: Path, flows: int, idle: int, seconds: int, rate: int) -> dict[str, object]:
    with ExitStack() as stack:
        ports = free_ports(flows)
        files = _write_flows(folder, ports)
        hosts, head = stack.enter_context(standalone(folder / "state"))
        store = connect(hosts)
        stack.callback(store.close)
        apply_seconds = timed("flow", "apply", *map(str, files), "--zk", hosts)
        started = time.monotonic()
        await_running(store, flows)
        running_seconds = time.monotonic() - started
        processes = Processes.of(head)
        time.sleep(QUIET_SECONDS)
        before = _cpu_of(processes)
        time.sleep(idle)
        idle_cpu = {
            name: round(100 * (after - before[name]) / idle, 1)
            for name, after in _cpu_of(processes).items()
        }
        status_seconds = timed("status", "--zk", hosts)
        list_seconds = timed("flow", "list", "--zk", hosts)
        sent = _send(ports, seconds, rate)
        drained = await_acked(store, sent * flows)
        times, numbers, _ = read_lake(folder / "lake", flows)
        most_threads = {name: threads(pid) for name, pid in processes.heads.items()}
        memory = {name: rss_mb(pid) for name, pid in processes.heads.items()}
    distinct = len(np.unique(numbers))
    return {
        "flows": flows,
        "events_per_second": flows * rate,
        "events": sent * flows,
        "lost": sent * flows - distinct,
        "twice": len(numbers) - distinct,
        "p50_seconds": round(float(np.percentile(times, 50)), 2),
        "p99_seconds": round(float(np.percentile(times, 99)), 2),
        "drained_seconds": round(drained, 1),
        "apply_seconds": round(apply_seconds, 2),
        "running_seconds": round(running_seconds, 1),
        "status_seconds": round(status_seconds, 2),
        "list_seconds": round(list_seconds, 2),
        "ingest_threads": most_threads["ingest"],
        "ingest_rss_mb": memory["ingest"],
        "collector_threads": most_threads["collector"],
        "idle_cpu_percent": round(sum(idle_cpu.values()), 1),
        "idle_cpu_percent_of": idle_cpu,
        "rss_mb_of": memory,
    }


def free_ports(count: int) -> list[int]:
    """UDP ports that nobody has now; all are held at once, so that none is given twice."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _write_flows(folder: Path, ports: Sequence[int]) -> list[Path]:
    (folder / "flows").mkdir()
    files = []
    for number, port in enumerate(ports):
        file = folder / "flows" / f"flow{number:04d}.yaml"
        lake = folder / "lake" / f"{number:04d}"
        file.write_text(FLOW.format(name=file.stem, port=port, lake=lake))
        files.append(file)
    return files


@contextmanager
def standalone(state: Path) -> Iterator[tuple[str, int]]:
    """The connect string and the process id of a cluster on this host."""
    command = [str(FLUMENG), "standalone", "--data", str(state)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("ready zk="):
                Thread(target=process.stdout.read, daemon=True).start()
                yield line.split()[1].removeprefix("zk="), process.pid
                return
        raise RuntimeError("standalone did not start")
    finally:
        process.terminate()
        process.wait()


def timed(*arguments: str) -> float:
    """Seconds of one command, whole process."""
    started = time.monotonic()
    done = subprocess.run([FLUMENG, *arguments], stdout=subprocess.PIPE, check=False)
    assert done.returncode in (0, 1), f"{arguments[0]} ended with {done.returncode}"
    return time.monotonic() - started


def await_running(store: Store, flows: int) -> None:
    """Until the node says that both tasks of every flow run."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    running = 0
    while time.monotonic() < deadline:
        (node,) = store.children(paths.nodes())
        status = store.read(paths.status(node))
        tasks = status.value.tasks.values() if status else ()
        running = sum(task.state == "running" for task in tasks)
        if running == 2 * flows:
            return
        time.sleep(0.5)
    raise TimeoutError(f"{running} of {2 * flows} tasks run after {PATIENCE_SECONDS:.0f} s")


def _cpu_of(processes: Processes) -> dict[str, float]:
    return {
        name: sum(cpu_seconds(member) for member in family(pid, processes.heads.values()))
        for name, pid in processes.heads.items()
    }


def _send(ports: Sequence[int], seconds: int, rate: int) -> int:
    """``rate`` datagrams a second to each port, evenly spread; how many each got."""
    sender = socket.socket(type=socket.SOCK_DGRAM)
    count = seconds * rate
    began = time.monotonic()
    for number in range(count * len(ports)):
        due = began + number / (rate * len(ports))
        if number % 50 == 0 and (ahead := due - time.monotonic()) > 0:
            time.sleep(ahead)
        line = f"<13>1 - h app - - - {number} {time.time():.6f}"
        sender.sendto(line.encode(), ("127.0.0.1", ports[number % len(ports)]))
    return count


def await_acked(store: Store, events: int) -> float:
    """Seconds until all are acked and no commit is open, or nothing moves any more."""
    started = moved = time.monotonic()
    last = -1
    flows = store.children(paths.flows())
    while time.monotonic() - moved < 60:
        names = [
            (flow, p) for flow in flows for p in store.children(paths.cursor(flow, CURSOR_MAIN))
        ]
        acks = store.read_many([paths.ack(flow, CURSOR_MAIN, name) for flow, name in names])
        acked = sum(ack.value.offset for ack in acks if ack)
        if acked >= events and not any(store.children(paths.commits(flow)) for flow in flows):
            break
        if acked != last:
            last, moved = acked, time.monotonic()
        time.sleep(0.5)
    return time.monotonic() - started


def read_lake(lake: Path, flows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds from send to visible of each event in the lake, its number, and when it was sent."""
    times: list[float] = []
    sent_at: list[float] = []
    numbers: list[int] = []
    for number in range(flows):
        for file in (lake / f"{number:04d}").glob("*.parquet"):
            visible = file.stat().st_ctime
            for body in pq.read_table(file, columns=["body"])["body"].to_pylist():
                *_, event, sent = body.split()
                numbers.append(int(event))
                times.append(visible - float(sent))
                sent_at.append(float(sent))
    return np.array(times), np.array(numbers), np.array(sent_at)
