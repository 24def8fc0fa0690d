"""How fast a real ingest worker takes syslog over TCP on this machine, every event synced to disk.

The worker runs as its own process and is spoken to as a node would; so does the sender. An event
counts when the worker's Flight server reports it below ``safe``, that is synced. Timed is from the
first byte sent to the last event safe.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any

from benches import footprint
from flumeng.journal.client import JournalClient

LINE_BYTES = 200
DISTINCT_LINES = 100_000
LINES_AT_ONCE = 1_000
LOOK_SECONDS = 0.01
ACK_SECONDS = 0.25
PATIENCE_SECONDS = 120.0
FLOW = """
flow: bench
sources:
  - syslog: {listen: "127.0.0.1:0"}
sinks:
  - noop
"""


def run(events: int = 4_000_000) -> dict[str, object]:
    """Measure one and four connections; rates are events a second, sizes decimal megabytes."""
    one = _measure(events, connections=1)
    four = _measure(events, connections=4)
    return {
        "events": events,
        "line_bytes": LINE_BYTES,
        "events_per_second": round(one["rate"]),
        "events_per_second_4": round(four["rate"]),
        "mb_per_second": round(one["rate"] * LINE_BYTES / 1e6, 1),
        "cpu_seconds_per_million": round(one["cpu_seconds"] / events * 1e6, 3),
        "rss_mb": {
            "ingest worker": round(max(one["rss_mb"], four["rss_mb"]), 1),
            "node control process": round(footprint.node_rss_mb(), 1),
        },
        "help_seconds": round(footprint.help_seconds(), 3),
    }


def _measure(events: int, connections: int) -> dict[str, float]:
    """Into a fresh journal below /var/tmp, which is a disk also where /tmp is memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as data:
        worker = _Worker(Path(data))
        sender = subprocess.Popen(
            [sys.executable, "-m", "benches.ingest", worker.listen, str(events), str(connections)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert sender.stdin and sender.stdout
        assert sender.stdout.readline() == "prepared\n"
        cpu_before = worker.cpu_seconds()
        sender.stdin.write("go\n")
        sender.stdin.flush()
        finished = worker.wait_for(events)
        started = float(sender.stdout.readline())
        result = {
            "rate": events / (finished - started),
            "cpu_seconds": worker.cpu_seconds() - cpu_before,
            "rss_mb": worker.peak_rss_mb(),
        }
        sender.wait()
        worker.stop()
        return result


class _Worker:
    """A worker process with one syslog flow, told of acks as if a collector followed it."""

    def __init__(self, data: Path) -> None:
        command = [sys.executable, "-m", "flumeng.ingest", "--data", str(data)]
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--node", "bench"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._client = JournalClient(self._receive("ready")["address"])
        task = {"flow": "bench", "task": "0", "epoch": 1, "revision": 1, "spec": FLOW}
        self._send({"type": "configure", "tasks": [task]})
        while not (status := self._receive("status"))["tasks"]:
            pass
        self.listen: str = status["tasks"]["bench/0"]["listen"][0]
        Thread(target=lambda: list(self._process.stdout or ()), daemon=True).start()

    def wait_for(self, events: int) -> float:
        """When the last event was seen to be safe, on the monotonic clock."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        acked_at = 0.0
        while True:
            positions = self._client.positions()
            now = time.monotonic()
            ((name, position),) = positions.items()
            if now - acked_at > ACK_SECONDS:
                acked_at = now
                self._send({"type": "acks", "acks": {name: position.safe}})
            if position.safe >= events:
                assert position.safe == events, f"{position.safe} events, {events} were sent"
                return now
            if now > deadline:
                raise TimeoutError(f"{position.safe} of {events} events after {PATIENCE_SECONDS} s")
            time.sleep(LOOK_SECONDS)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_rss_mb(self) -> float:
        return footprint.peak_rss_mb(self._process.pid)

    def stop(self) -> None:
        self._client.close()
        self._send({"type": "stop"})
        assert self._process.wait(timeout=30) == 0

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self, kind: str) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message["type"] == kind:
                return message
        raise RuntimeError("the worker ended")


def make_lines(count: int) -> list[bytes]:
    """Web server access lines in RFC 5424, all of one length, as varied as real ones."""
    chance = random.Random(5424)
    paths = ["/", "/index.html", "/api/v1/orders", "/api/v1/users/login", "/static/app.js", "/cart"]
    agents = ["Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "okhttp/4.12.0", "Googlebot/2.1"]
    lines = []
    for number in range(count):
        second, micro = number // 20_000, chance.randrange(10**6)
        client = ".".join(str(chance.randrange(1, 255)) for _ in range(4))
        line = (
            f"<{chance.randrange(16, 192)}>1 2026-11-21T08:{second // 60:02}:{second % 60:02}"
            f".{micro:06}Z web-{chance.randrange(40):02} nginx {chance.randrange(300, 65535)}"
            f" access - {client} GET {chance.choice(paths)}?id={chance.randrange(10**9)} 200 "
            f'{chance.randrange(10**6)} {chance.random():.3f} "{chance.choice(agents)}" '
        )
        request = f"{chance.getrandbits(640):0160x}"
        lines.append((line + request).encode()[: LINE_BYTES - 1] + b"\n")
    return lines


def send(place: str, events: int, connections: int) -> None:
    """The sender's process: prepares, waits for the word, sends, tells when it began."""
    host, _, port = place.rpartition(":")
    lines = make_lines(DISTINCT_LINES)
    blocks = [
        b"".join(lines[start : start + LINES_AT_ONCE])
        for start in range(0, DISTINCT_LINES, LINES_AT_ONCE)
    ]
    sockets = [socket.create_connection((host, int(port))) for _ in range(connections)]
    print("prepared", flush=True)
    sys.stdin.readline()
    share = events // connections // LINES_AT_ONCE
    assert share * connections * LINES_AT_ONCE == events, "events must fill whole blocks"
    threads = [Thread(target=_send_blocks, args=(sock, blocks, share)) for sock in sockets]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(began, flush=True)


def _send_blocks(connection: socket.socket, blocks: list[bytes], count: int) -> None:
    for number in range(count):
        connection.sendall(blocks[number % len(blocks)])
    connection.close()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        send(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(run(), indent=2))
