"""What sends in benches: a process of its own, so that nothing in it delays who measures.

A sender prepares everything, waits for the word, sends, and tells when it began (monotonic clock,
which all processes of a host share). What was received is counted at the other end, never here.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from itertools import cycle, islice
from typing import Any

LINE_BYTES = 200
DISTINCT_LINES = 100_000
LINES_AT_ONCE = 1_000
TICK_SECONDS = 0.001
PACED_LINES = 100


class Sender:
    """``kind`` is a name of KINDS. ``rate``: events per second, where the kind has one."""

    def __init__(
        self, kind: str, place: str, events: int, connections: int = 1, rate: int = 0
    ) -> None:
        command = [sys.executable, "-m", "benches.senders", kind, place]
        self._process = subprocess.Popen(
            [*command, str(events), str(connections), str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == "prepared\n"

    def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """It has not failed so far."""
        assert not self._process.poll(), "the sender has failed"

    def result(self) -> dict[str, Any]:
        """Wait until everything is sent; has ``began`` at least."""
        assert self._process.stdout
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert self._process.wait() == 0
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def make_lines(number: int) -> list[bytes]:
    """Web server access lines in RFC 5424, all of one length, as varied as real ones."""
    chance = random.Random(5424)
    paths = ["/", "/index.html", "/api/v1/orders", "/api/v1/users/login", "/static/app.js", "/cart"]
    agents = ["Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "okhttp/4.12.0", "Googlebot/2.1"]
    lines = []
    for index in range(number):
        second, micro = index // 20_000, chance.randrange(10**6)
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


def make_blocks(lines_at_once: int = LINES_AT_ONCE, number: int = DISTINCT_LINES) -> list[bytes]:
    """Of so many lines, or of all distinct ones where those are fewer."""
    lines = make_lines(min(number, DISTINCT_LINES))
    return [
        b"".join(lines[start : start + lines_at_once])
        for start in range(0, len(lines), lines_at_once)
    ]


def _stream(place: tuple[str, int], events: int, connections: int, _rate: int) -> dict[str, Any]:
    """As fast as the other end takes it, over TCP."""
    return _streamed([socket.create_connection(place) for _ in range(connections)], events)


def _tls_stream(place: tuple[str, int], events: int, connections: int, _: int) -> dict[str, Any]:
    """The same over TLS; whom the certificate names is not looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opened = [socket.create_connection(place) for _ in range(connections)]
    return _streamed([context.wrap_socket(one) for one in opened], events)


def _streamed(sockets: list[Any], events: int) -> dict[str, Any]:
    blocks = make_blocks(number=events)
    share = _blocks_each(events, len(sockets))

    def send(connection: socket.socket) -> None:
        for block in islice(cycle(blocks), share):
            connection.sendall(block)
        connection.close()

    return _started([partial(send, connection) for connection in sockets])


def _posts(place: tuple[str, int], events: int, connections: int, _rate: int) -> dict[str, Any]:
    """HTTP requests of a thousand lines each; every answer is waited for and must be 200."""
    blocks = make_blocks()
    clients = [HTTPConnection(*place) for _ in range(connections)]
    share = _blocks_each(events, connections)

    def send(client: HTTPConnection) -> None:
        for block in islice(cycle(blocks), share):
            client.request("POST", "/", block, {"Content-Type": "text/plain"})
            answer = client.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        client.close()

    return _started([partial(send, client) for client in clients])


def _paced_posts(
    place: tuple[str, int], events: int, connections: int, rate: int
) -> dict[str, Any]:
    """HTTP requests of PACED_LINES each at an even rate, on connections in turns. ``delays``: of
    each request the seconds from when it was due until it was answered with 200, so that one which
    has to wait for the answer before it on its connection waits in this too."""
    blocks = make_blocks(PACED_LINES, events)
    clients = [HTTPConnection(*place) for _ in range(connections)]
    for client in clients:
        client.connect()
    delays: list[float] = []
    began: list[float] = []

    def send(number: int) -> None:
        for index in range(number, events // PACED_LINES, connections):
            due = began[0] + index * PACED_LINES / rate
            time.sleep(max(0.0, due - time.monotonic()))
            block = blocks[index % len(blocks)]
            clients[number].request("POST", "/", block, {"Content-Type": "text/plain"})
            answer = clients[number].getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            delays.append(time.monotonic() - due)
        clients[number].close()

    print("prepared", flush=True)
    sys.stdin.readline()
    began.append(time.monotonic())
    with ThreadPoolExecutor(connections) as pool:
        for done in [pool.submit(send, number) for number in range(connections)]:
            done.result()
    return {"began": began[0], "ended": time.monotonic(), "delays": delays}


def _paced(place: tuple[str, int], events: int, _connections: int, rate: int) -> dict[str, Any]:
    """Over one TCP connection. ``marks``: for each block (when it was about to be sent, and how
    many events were sent with it)."""
    each = round(rate * TICK_SECONDS)
    blocks = make_blocks(each)
    connection = socket.create_connection(place)
    marks: list[tuple[float, int]] = []

    def send(number: int, block: bytes) -> None:
        marks.append((time.monotonic(), (number + 1) * each))
        connection.sendall(block)

    found = _started([lambda: _every_tick(events // each, blocks, send)])
    connection.close()
    return {**found, "marks": marks}


def _datagrams(place: tuple[str, int], events: int, _connections: int, rate: int) -> dict[str, Any]:
    """One line a datagram, at an even rate."""
    each = round(rate * TICK_SECONDS)
    lines = [line.rstrip(b"\n") for line in make_lines(DISTINCT_LINES)]
    groups = [lines[start : start + each] for start in range(0, DISTINCT_LINES, each)]
    sender = socket.socket(type=socket.SOCK_DGRAM)
    sender.connect(place)

    def send(_number: int, group: list[bytes]) -> None:
        for line in group:
            sender.send(line)

    return _started([lambda: _every_tick(events // each, groups, send)])


def _every_tick(number: int, things: list[Any], send: Callable[[int, Any], None]) -> None:
    """``send(index, thing)`` so many times, one a tick; late ones follow without a pause."""
    began = time.monotonic()
    for index, thing in zip(range(number), cycle(things), strict=False):
        ahead = began + index * TICK_SECONDS - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        send(index, thing)


def _blocks_each(events: int, connections: int) -> int:
    share = events // connections // LINES_AT_ONCE
    assert share * connections * LINES_AT_ONCE == events, "events must fill whole blocks"
    return share


def _started(works: list[Callable[[], None]]) -> dict[str, Any]:
    """Wait for the word, then do all of them at once. Raises the error of one that fails."""
    print("prepared", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()
    return {"began": began, "ended": time.monotonic()}


KINDS = {
    "stream": _stream,
    "tls_stream": _tls_stream,
    "posts": _posts,
    "paced_posts": _paced_posts,
    "paced": _paced,
    "datagrams": _datagrams,
}


def main() -> None:
    kind, place, events, connections, rate = sys.argv[1:]
    host, _, port = place.rpartition(":")
    found = KINDS[kind]((host, int(port)), int(events), int(connections), int(rate))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
