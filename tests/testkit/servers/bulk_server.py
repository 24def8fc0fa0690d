"""A server that takes bulk requests as Elasticsearch does, and only counts their events.

    python -m tests.testkit.servers.bulk_server PORT [--most-bytes N] [--busy-every N]

``--busy-every``: of each Nth request every second event is answered with 429. ``GET /`` says how
many events and requests were taken.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress

from flumeng.agent.standalone.embedded import free_port
from flumeng.platform.processes import die_with_parent
from tests.testkit.waiting import retry

HEAD_BYTES = 64 * 1024
FINE = b'{"errors":false}'
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class BulkServer:
    """One in a process of its own. ``arguments`` as above."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", __name__, str(self.port), *arguments]
        self.process = subprocess.Popen(command)
        retry(self.taken, OSError, "the server does not answer")

    def taken(self) -> dict[str, int]:
        """The number of received ``events`` and ``requests``."""
        with urllib.request.urlopen(self.address, timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
            return found

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Counter:
    def __init__(self, most_bytes: int, busy_every: int) -> None:
        self._most_bytes = most_bytes
        self._busy_every = busy_every
        self._lock = threading.Lock()
        self._events = self._requests = 0

    def serve(self, connection: socket.socket) -> None:
        """Answer requests until the client ends the connection."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        room = bytearray(HEAD_BYTES)
        with connection, suppress(OSError):
            while True:
                filled, end = 0, -1
                while end < 0:
                    count = connection.recv_into(memoryview(room)[filled:HEAD_BYTES])
                    if not count:
                        return
                    filled += count
                    end = room.find(b"\r\n\r\n", 0, filled)
                head = bytes(room[:end])
                length = _LENGTH.search(head)
                total = end + 4 + (int(length[1]) if length else 0)
                if total > len(room):
                    room.extend(bytes(total - len(room)))
                while filled < total:
                    filled += connection.recv_into(memoryview(room)[filled:total])
                status, answer = self._answer(head, room, end + 4, total)
                connection.sendall(
                    b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % (status, len(answer))
                    + answer
                )

    def _answer(self, head: bytes, room: bytearray, start: int, end: int) -> tuple[int, bytes]:
        if head.startswith(b"GET"):
            return 200, json.dumps({"events": self._events, "requests": self._requests}).encode()
        if self._most_bytes and end - start > self._most_bytes:
            return 413, b""
        if b"content-encoding: gzip" in head.lower():
            events = gzip.decompress(room[start:end]).count(b"\n") // 2
        else:
            events = room.count(b"\n", start, end) // 2
        with self._lock:
            self._requests += 1
            busy = self._busy_every and self._requests % self._busy_every == 0
            self._events += events - events // 2 if busy else events
        if not busy:
            return 200, FINE
        items = [{"index": {"status": 429 if n % 2 else 201}} for n in range(events)]
        return 200, json.dumps({"errors": True, "items": items}).encode()


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--most-bytes", type=int, default=0)
    parser.add_argument("--busy-every", type=int, default=0)
    given = parser.parse_args()
    counter = Counter(given.most_bytes, given.busy_every)
    with socket.create_server(("127.0.0.1", given.port)) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=counter.serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
