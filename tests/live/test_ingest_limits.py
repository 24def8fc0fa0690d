"""Greedy senders against a real worker: limits hold, and other senders are served."""

from __future__ import annotations

import collections
import contextlib
import gzip
import http.client
import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testkit.ingest_worker import WorkerProcess, flow_text

IDLE_CONNECTIONS = 10_000
LONG_LINE_BYTES = 1 << 30
MAX_LINE_BYTES = 1 << 20
SERVED_SECONDS = 30.0
MOST_RSS_MB = 160
BOMBS = 800
MOST_RSS_BOMBED_MB = 320


@pytest.fixture
def descriptors() -> Iterator[int]:
    """Raise the limit of descriptors to the system's maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def peak_rss_mb(worker: WorkerProcess) -> float:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class LongLine(threading.Thread):
    """A sender of a line of a gigabyte, as fast as it is allowed."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(daemon=True)
        self.connection = connection

    def run(self) -> None:
        block = b"x" * (1 << 20)
        for _ in range(LONG_LINE_BYTES // len(block)):
            self.connection.sendall(block)
        self.connection.sendall(b"\n")


class Slow(threading.Thread):
    """A sender of one byte now and then."""

    def __init__(self, connection: socket.socket, line: bytes) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.line = line

    def run(self) -> None:
        for letter in self.line:
            self.connection.sendall(bytes([letter]))
            time.sleep(0.05)


@pytest.mark.parametrize("source", ["tcp", "http"])
def test_connections_leave_the_descriptors_of_the_journals_free(
    worker: WorkerProcess, source: str
) -> None:
    """Where only a few files may be open, more idle senders than that are no harm."""

    def say(connection: socket.socket, text: bytes) -> None:
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(text)
        connection.sendall((head if source == "http" else b"") + text)

    resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE, (120, 120))
    worker.run(flow_text("f", f'{source}: {{listen: "127.0.0.1:0"}}'))
    with contextlib.ExitStack() as stack:
        good, *_ = [stack.enter_context(worker.connect("f")) for _ in range(200)]
        worker.eventually(lambda: worker.counters("f")["refused"] > 80)
        say(good, b"good\n")
        worker.wait_for_events("f", 1)

    def is_served() -> bool:
        """The connections before are closed one after another."""
        with contextlib.suppress(ConnectionError), worker.connect("f") as connection:
            say(connection, b"next\n")
            time.sleep(0.1)
        return bool(worker.counters("f")["events"] > 1)

    worker.eventually(is_served)
    worker.stop()


def test_many_short_lines_with_long_attributes_are_stored_in_bounded_memory(
    worker: WorkerProcess,
) -> None:
    """A request of 720 KB that would expand to 90 MB, were its repetition not compressed; another
    source of the same flow is served on."""
    rnd = random.Random(1)
    lines = [rnd.randbytes(10).replace(b"\n", b"x").replace(b"\r", b"x") for _ in range(65_536)]
    worker.run(flow_text("f", 'http: {listen: "127.0.0.1:0"}', 'tcp: {listen: "127.0.0.1:0"}'))
    host, _, port = worker.task("f")["listen"][0].rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=SERVED_SECONDS)
    with worker.connect("f", 1) as other:
        other.sendall(b"before\n")
        worker.wait_for_events("f", 1)
        kind = "text/" + "\xe4" * 195
        path = "/" + "%F0%9F%90%98" * 199
        client.request("POST", path, b"\n".join(lines), {"content-type": kind.encode("latin-1")})
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (200, b"{}\n")
        other.sendall(b"after\n")
        events = worker.wait_for_events("f", 65_538)
    assert sorted(event["body"] for event in events) == sorted([b"before", b"after", *lines])
    assert len(dict(events[1000]["attrs"])["path"]) == 200
    assert len(worker.journals("f")) == 1
    assert all(problem["error"] is None for problem in worker.status["tasks"].values())
    assert peak_rss_mb(worker) < MOST_RSS_MB
    worker.stop()


def request(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST / HTTP/1.1", b"Host: h", b"Content-Length: %d" % len(body), *headers, b"", b""]
    return b"\r\n".join(lines) + body


def status(connection: socket.socket) -> int:
    connection.settimeout(2 * SERVED_SECONDS)
    with connection.makefile("rb") as answer:
        return int(answer.readline().split()[1])


@pytest.mark.long
def test_zip_bombs_on_many_connections_at_once_take_bounded_memory(
    worker: WorkerProcess, descriptors: int
) -> None:
    """3.2 GB in requests of 4 KB, larger ones than a body may be, and 4 MiB of commas: each is
    answered, and so is a good sender meanwhile."""
    assert descriptors > BOMBS + 500, f"needs more than {descriptors} open files"
    worker.run(flow_text("f", 'http: {listen: "127.0.0.1:0"}'))
    packed = b"Content-Encoding: gzip"
    fitting = request(gzip.compress((b"x" * 999 + b"\n") * 4_000, 9), packed)
    huge = request(gzip.compress(bytes(1 << 28), 1)[: 1 << 20], packed)
    commas = request(b"[" + b"1," * ((2 << 20) - 1) + b"1]", b"Content-Type: application/json")
    answers: collections.Counter[int] = collections.Counter()
    slowest = 0.0
    with contextlib.ExitStack() as stack:
        for kind, count in ((fitting, BOMBS), (huge, 20), (commas, 4)):
            senders = [stack.enter_context(worker.connect("f")) for _ in range(count)]
            for sender in senders:
                sender.sendall(kind)
            began = time.monotonic()
            with worker.connect("f") as good:
                good.sendall(request(b"good\n"))
                assert status(good) in (200, 429)
            slowest = max(slowest, time.monotonic() - began)
            said = collections.Counter(map(status, senders))
            assert set(said) <= ({200, 429} if kind is fitting else {413, 429})
            answers += said
    assert answers[200] > 0
    assert answers[413] > 0
    assert slowest < SERVED_SECONDS
    assert peak_rss_mb(worker) < MOST_RSS_BOMBED_MB
    with worker.connect("f") as good:
        good.sendall(request(b"good\n"))
        assert status(good) == 200
    worker.stop()


def test_bodies_refused_while_they_arrive_are_freed(worker: WorkerProcess) -> None:
    """150 of 4 MiB, all of them at once and in small parts."""
    worker.run(flow_text("f", 'http: {listen: "127.0.0.1:0"}'))
    part = b"x" * (1 << 17)
    head = request(b"x" * (4 << 20))[: -(4 << 20)]
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(worker.connect("f")) for _ in range(150)]
        for sender in senders:
            sender.sendall(head)
        for _ in range(32):
            for sender in senders:
                with contextlib.suppress(ConnectionError):
                    sender.sendall(part)
        with contextlib.suppress(ConnectionError):
            assert {status(sender) for sender in senders} <= {200, 429}
    assert peak_rss_mb(worker) < MOST_RSS_BOMBED_MB
    worker.stop()


def test_good_sender_is_served_beside_idle_endless_and_slow_ones(
    worker: WorkerProcess, descriptors: int
) -> None:
    """Ten thousand idle connections, one line of a gigabyte, one sender that is slow; the next
    connection is one too many."""
    assert descriptors > IDLE_CONNECTIONS + 500, f"needs more than {descriptors} open files"
    most = IDLE_CONNECTIONS + 3
    source = f'tcp: {{listen: "127.0.0.1:0", max_connections: {most}}}'
    worker.run(flow_text("f", source))
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            stack.enter_context(worker.connect("f"))
        endless, slow, good = (stack.enter_context(worker.connect("f")) for _ in range(3))
        senders = [LongLine(endless), Slow(slow, b"slow but whole\n")]
        for sender in senders:
            sender.start()
        served = 0
        while any(sender.is_alive() for sender in senders):
            began = time.monotonic()
            good.sendall(b"good\n")
            served += 1
            worker.eventually(lambda: worker.counters("f")["events"] >= served)  # noqa: B023  asked at once
            assert time.monotonic() - began < SERVED_SECONDS
            time.sleep(0.05)
        assert served > 1
        with worker.connect("f") as refused:
            refused.settimeout(SERVED_SECONDS)
            with contextlib.suppress(ConnectionResetError):
                assert refused.recv(1) == b""
        lengths = [len(event["body"]) for event in worker.wait_for_events("f", served + 2)]
        assert sorted(lengths) == [4] * served + [14, MAX_LINE_BYTES]
        counters = worker.counters("f")
        assert (counters["refused"], counters["truncated"]) == (1, 1)
        assert peak_rss_mb(worker) < MOST_RSS_MB
    worker.stop()
