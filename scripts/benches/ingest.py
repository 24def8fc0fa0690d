"""How fast real ingest workers take events on this machine, every event synced to disk; beside it
rsyslog, and what the disk itself can do.

Workers run as processes and are spoken to as a node would; so does the sender. An event counts when
the worker's Flight server reports it below ``safe``, that is synced, and for rsyslog when it is in
the output file. Timed is from the first byte sent to the last event that counts.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

from benches import disk, footprint, rsyslog
from benches.processes import cpu_seconds, peak_rss_mb
from benches.rsyslog import Rsyslog
from benches.senders import LINE_BYTES, Sender
from tests.testkit.ingest_worker import WorkerProcess, flow_text

LOOK_SECONDS = 0.01
LATENCY_LOOK_SECONDS = 0.001
ACK_SECONDS = 0.25
PATIENCE_SECONDS = 120.0
RSYSLOG_SECONDS = 10.0
UDP_EVENTS, UDP_RATE = 500_000, 100_000
LATENCY_EVENTS, LATENCY_RATE = 500_000, 50_000
HTTP_CONNECTIONS = 4
FLOW = "bench"


def run(events: int = 4_000_000) -> dict[str, object]:
    """Rates are events a second, sizes decimal megabytes.

    Latency comes first, while the disk has nothing left to do of what was written before.
    """
    latency = _latency()
    one = measure("stream", events)
    four = measure("stream", events, connections=4)
    spread = measure("stream", events, connections=4, workers=2)
    http = measure("posts", events // 4, connections=HTTP_CONNECTIONS, source="http")
    with _folder() as folder:
        disk_mb = disk.fdatasync_mb_per_second(folder, events * LINE_BYTES)
    mb = one["rate"] * LINE_BYTES / 1e6
    return {
        "events": events,
        "line_bytes": LINE_BYTES,
        "events_per_second": round(one["rate"]),
        "events_per_second_4": round(four["rate"]),
        "events_per_second_4_workers_2": round(spread["rate"]),
        "mb_per_second": round(mb, 1),
        "disk_fdatasync_mb_per_second": round(disk_mb, 1),
        "disk_share": round(mb / disk_mb, 2),
        "cpu_seconds_per_million": round(one["cpu_seconds"] / events * 1e6, 3),
        "http_events_per_second": round(http["rate"]),
        "http_cpu_seconds_per_million": round(http["cpu_seconds"] / events * 4e6, 3),
        **latency,
        "udp_events_sent_per_second": UDP_RATE,
        "udp_loss_ratio": _udp_loss(),
        **_rsyslog(events // 4),
        "rss_mb": {
            "ingest worker": round(max(one["rss_mb"], four["rss_mb"]), 1),
            "node control process": round(footprint.node_rss_mb(), 1),
        },
        "help_seconds": round(footprint.help_seconds(), 3),
    }


def measure(
    kind: str,
    events: int,
    *,
    connections: int = 1,
    workers: int = 1,
    source: str = "syslog",
    options: str = "",
) -> dict[str, float]:
    """``options`` are more options of the source, as YAML. ``rate`` is events a second."""
    with _folder() as folder:
        listen = f'listen: "{_free_place()}"'
        group = _Crew(folder, f"{source}: {{{listen}{options}}}", workers)
        sender = Sender(kind, group.listen, events, connections)
        cpu_before = group.cpu_seconds()
        sender.go()
        finished = group.wait_for(events, sender)
        result = {
            "rate": events / (finished - sender.result()["began"]),
            "cpu_seconds": group.cpu_seconds() - cpu_before,
            "rss_mb": group.peak_rss_mb(),
        }
        group.stop()
        return result


def _latency() -> dict[str, float]:
    """From before a block is sent until all of it is seen to be safe; the look adds up to about a
    millisecond."""
    with _folder() as folder:
        group = _Crew(folder, f'syslog: {{listen: "{_free_place()}"}}', 1)
        sender = Sender("paced", group.listen, LATENCY_EVENTS, rate=LATENCY_RATE)
        sender.go()
        seen: list[tuple[float, int]] = []
        while not seen or seen[-1][1] < LATENCY_EVENTS:
            safe = group.safe()
            seen.append((time.monotonic(), safe))
            assert len(seen) < 2 or seen[-1][0] - seen[0][0] < PATIENCE_SECONDS, seen[-1]
            time.sleep(LATENCY_LOOK_SECONDS)
        sent = sender.result()
        group.stop()
    assert seen[-1][1] == LATENCY_EVENTS
    looks = iter(seen)
    when, safe = next(looks)
    delays = []
    for about_to_send, upto in sent["marks"]:
        while safe < upto:
            when, safe = next(looks)
        delays.append((when - about_to_send) * 1000)
    return {
        "latency_events_sent_per_second": round(LATENCY_EVENTS / (sent["ended"] - sent["began"])),
        "durable_latency_ms_p50": round(quantiles(delays, n=2)[0], 2),
        "durable_latency_ms_p99": round(quantiles(delays, n=100)[98], 2),
    }


def _udp_loss() -> float:
    """What the worker and the kernel count must be what was sent."""
    with _folder() as folder:
        listen = _free_place()
        group = _Crew(folder, f'syslog: {{listen: "{listen}", protocol: udp}}', 1)
        sender = Sender("datagrams", listen, UDP_EVENTS, rate=UDP_RATE)
        sender.go()
        sender.result()
        deadline = time.monotonic() + 10.0
        while group.counted() != UDP_EVENTS and time.monotonic() < deadline:
            time.sleep(0.1)
        assert group.counted() == UDP_EVENTS, f"{group.counted()} of {UDP_EVENTS} accounted for"
        safe = group.safe()
        group.stop()
        return round(1 - safe / UDP_EVENTS, 5)


def _rsyslog(events: int) -> dict[str, float | None]:
    """Without rsyslog each of its figures is null."""
    there = rsyslog.install()
    found: dict[str, float | None] = {}
    for mode, durable in (("memory", False), ("durable", True)):
        for suffix, connections in (("", 1), ("_4", 4)):
            key = f"rsyslog_{mode}_events_per_second{suffix}"
            found[key] = _rsyslog_rate(events, connections, durable=durable) if there else None
    found["rsyslog_udp_loss_ratio"] = _rsyslog_udp_loss() if there else None
    return found


def _rsyslog_rate(events: int, connections: int, *, durable: bool) -> int:
    """What is there after some seconds counts, when it has not got all of them by then."""
    with _folder() as folder:
        server = Rsyslog(folder, durable=durable)
        sender = Sender("stream", server.place, events, connections)
        began = time.monotonic()
        sender.go()
        patience = RSYSLOG_SECONDS if durable else PATIENCE_SECONDS
        finished, there = server.wait_for(events, patience)
        sender.kill()
        server.kill()
        server.check()
        assert durable or there == events, f"rsyslog has {there} of {events} events"
        return round(there / (finished - began))


def _rsyslog_udp_loss() -> float:
    with _folder() as folder:
        server = Rsyslog(folder, durable=False)
        sender = Sender("datagrams", server.place, UDP_EVENTS, rate=UDP_RATE)
        sender.go()
        sender.result()
        _, there = server.wait_for(UDP_EVENTS, 3.0)
        server.kill()
        return round(1 - there / UDP_EVENTS, 5)


class _Crew:
    """The workers of a node with one flow, told of acks as if a collector followed them."""

    def __init__(self, data: Path, source: str, workers: int) -> None:
        self._workers = [
            WorkerProcess(data, "--worker", str(number), "--workers", str(workers))
            for number in range(workers)
        ]
        for worker in self._workers:
            worker.run(flow_text(FLOW, source))
        self.listen: str = self._workers[0].task(FLOW)["listen"][0]
        self._acked_at = 0.0

    def safe(self) -> int:
        """How many events are synced."""
        total = 0
        ack = time.monotonic() - self._acked_at > ACK_SECONDS
        for worker in self._workers:
            ((name, position),) = worker.client.positions().items()
            total += position.safe
            if ack:
                self._acked_at = time.monotonic()
                worker.send(type="acks", acks={name: position.safe})
        return total

    def wait_for(self, events: int, sender: Sender) -> float:
        """When the last event was seen to be safe, on the monotonic clock."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (safe := self.safe()) < events:
            sender.check()
            assert time.monotonic() < deadline, f"{safe} of {events} events"
            time.sleep(LOOK_SECONDS)
        assert safe == events, f"{safe} events, {events} were sent"
        return time.monotonic()

    def counted(self) -> int:
        """Events that are safe, and datagrams that the kernel dropped."""
        dropped = sum(worker.counters(FLOW)["dropped"] for worker in self._workers)
        return self.safe() + int(dropped)

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(worker.process.pid) for worker in self._workers)

    def peak_rss_mb(self) -> float:
        return max(peak_rss_mb(worker.process.pid) for worker in self._workers)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()


@contextmanager
def _folder() -> Iterator[Path]:
    """Below /var/tmp, which is a disk also where /tmp is memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        yield Path(folder)
        os.sync()  # what is left to write must not slow down what is measured next


def _free_place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"
