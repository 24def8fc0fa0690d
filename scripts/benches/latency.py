"""How long an event takes from the socket to a file that a reader of the lake sees.

``flumeng standalone`` runs real processes. One flow with ``batch: {seconds: 0.2}`` takes lines over
TCP at an even rate, each with the time at which it was sent; an event is visible when its file has
been renamed into place, which the file system notes as the file's change time. This is done twice:
alone, and beside many other flows that take a few events a second each. The first seconds of each,
in which Spark and its workers become warm, do not count. What is missing at the end fails the run.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import numpy as np

from benches.breadth import await_acked, await_running, free_ports, read_lake, standalone, timed
from flumeng.control.zookeeper.kazoo_store import connect

FLOW = """
flow: {name}
sources: [{{syslog: {{listen: "127.0.0.1:{port}", protocol: {protocol}}}}}]
delivery: exactly-once
batch: {{seconds: {seconds}}}
sinks: [{{files: {{path: "{lake}", format: parquet}}}}]
"""
BATCH_SECONDS = 0.2
OTHER_BATCH_SECONDS = 1.0
OTHER_RATE = 10
TICK_SECONDS = 0.005
PADDING = "x" * 130


def run(
    rate: int = 10_000, seconds: int = 30, warm: int = 20, others: int = 100
) -> dict[str, object]:
    """``rate`` events/s for ``warm`` and then ``seconds`` seconds; then with ``others`` beside."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        alone = _measure(Path(folder) / "alone", rate, seconds, warm, 0)
        beside = _measure(Path(folder) / "beside", rate, seconds, warm, others)
    return {
        "events_per_second": rate,
        "batch_seconds": BATCH_SECONDS,
        "other_flows": others,
        "p50_seconds": alone[50],
        "p99_seconds": alone[99],
        f"p50_seconds_{others}_flows": beside[50],
        f"p99_seconds_{others}_flows": beside[99],
    }


def _measure(folder: Path, rate: int, seconds: int, warm: int, others: int) -> dict[int, float]:
    """Percentiles of the first flow's events."""
    folder.mkdir()
    ports = free_ports(1 + others)
    with ExitStack() as stack:
        hosts, _ = stack.enter_context(standalone(folder / "state"))
        store = connect(hosts)
        stack.callback(store.close)
        timed("flow", "apply", *_write_flows(folder, ports), "--zk", hosts)
        await_running(store, len(ports))
        noise = Thread(target=_send_others, args=(ports[1:], warm + seconds), daemon=True)
        noise.start()
        counted_from = time.time() + warm
        sent = _send(ports[0], rate, warm + seconds)
        noise.join()
        await_acked(store, sent + others * OTHER_RATE * (warm + seconds))
        times, numbers, sent_at = read_lake(folder / "lake", 1)
    assert len(np.unique(numbers)) == len(numbers) == sent, f"{len(numbers)} of {sent} events"
    counted = times[sent_at >= counted_from]
    return {part: round(float(np.percentile(counted, part)), 3) for part in (50, 99)}


def _write_flows(folder: Path, ports: Sequence[int]) -> list[str]:
    files = []
    for number, port in enumerate(ports):
        file = folder / f"flow{number:04d}.yaml"
        first = number == 0
        text = FLOW.format(
            name=file.stem,
            port=port,
            protocol="tcp" if first else "udp",
            seconds=BATCH_SECONDS if first else OTHER_BATCH_SECONDS,
            lake=folder / "lake" / f"{number:04d}",
        )
        file.write_text(text)
        files.append(str(file))
    return files


def _send(port: int, rate: int, seconds: int) -> int:
    """Lines at an even rate over one connection; how many."""
    each = round(rate * TICK_SECONDS)
    ticks = round(seconds / TICK_SECONDS)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for tick in range(ticks):
            ahead = began + tick * TICK_SECONDS - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            head = f"<13>1 - h app - - - {PADDING}"
            now = f"{time.time():.6f}"
            lines = (f"{head} {tick * each + place} {now}\n" for place in range(each))
            connection.sendall("".join(lines).encode())
    return ticks * each


def _send_others(ports: Sequence[int], seconds: int) -> None:
    """``OTHER_RATE`` datagrams a second to each port, evenly spread."""
    sender = socket.socket(type=socket.SOCK_DGRAM)
    began = time.monotonic()
    for number in range(len(ports) * OTHER_RATE * seconds):
        ahead = began + number / (len(ports) * OTHER_RATE) - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        line = f"<13>1 - h app - - - {number} {time.time():.6f}"
        sender.sendto(line.encode(), ("127.0.0.1", ports[number % len(ports)]))
