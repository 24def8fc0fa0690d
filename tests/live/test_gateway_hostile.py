"""Hostile bytes at a gateway's port: memory and threads stay bounded, and real readers go on."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyarrow import flight

from flumeng.connectors.api.finding import Before
from flumeng.journal.serving import gateway_wire, wire
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import UserError
from tests.live.gateway_sites import PARTITION, Sites, secured, sites
from tests.testkit.waiting import wait_for

__all__ = ["secured", "sites"]
CONNECTIONS = 1000
MOST_BYTES_EACH = 128 << 10
"""For a connection, at both ends: TLS has a few buffers."""
MOST_THREADS = 100
"""gRPC adds some, whatever the number of connections."""
READ_SECONDS = 60.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGE = 4 << 20


@pytest.fixture(params=["open", "secured"])
def gateways(request: pytest.FixtureRequest) -> Sites:
    name = "sites" if request.param == "open" else "secured"
    made = request.getfixturevalue(name)
    assert isinstance(made, Sites)
    return made


def hello() -> bytes:
    """The first message of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(incoming, outgoing, server_hostname="gw1.fra.example")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


ATTACKS = (
    b"",
    os.urandom(4096),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    hello(),
    hello()[:40],
    PREFACE,
    PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    PREFACE + b"\xff\xff\xff\x00\x00\x7f\xff\xff\xff" + os.urandom(2000),
)


def usage() -> tuple[int, int]:
    """Return the resident bytes and the threads of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["VmRSS"].split()[0]) << 10, int(fields["Threads"])


@contextlib.contextmanager
def attacked(address: str) -> Iterator[list[socket.socket]]:
    """Hold connections with each kind of bytes; some send one more byte every now and then."""
    host, _, port = address.rpartition(":")
    enough = threading.Event()
    with ExitStack() as stack:
        held = []
        for number in range(CONNECTIONS):
            made = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            with contextlib.suppress(OSError):  # the gateway may close it
                made.sendall(ATTACKS[number % len(ATTACKS)])
            held.append(made)

        def send_slowly() -> None:
            while not enough.wait(0.2):
                for one in held[3::50]:
                    with contextlib.suppress(OSError):
                        one.send(b"\0")

        slow = threading.Thread(target=send_slowly)
        slow.start()
        try:
            yield held
        finally:
            enough.set()
            slow.join()


def test_hostile_connections_hold_up_no_reader(gateways: Sites) -> None:
    first, second = gateways.gateways
    second.stop(0.1)
    assert gateways.finder().find(Before()).offers.keys() == {PARTITION}
    assert gateways.read(0, 1000).num_rows == 1000
    memory, threads = usage()
    with attacked(first.address):
        began = time.monotonic()
        for _ in range(3):
            assert gateways.finder().find(Before()).offers.keys() == {PARTITION}
            assert gateways.read(0, 1000).num_rows == 1000
        assert time.monotonic() - began < READ_SECONDS
        more_memory, more_threads = usage()
        assert more_memory - memory < CONNECTIONS * MOST_BYTES_EACH
        assert more_threads - threads < MOST_THREADS
    wait_for(lambda: usage()[1] - threads < MOST_THREADS, "threads stay")
    assert gateways.read(0, 1000).num_rows == 1000


def test_oversized_requests_are_refused_and_leave_nothing(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_wire, "MOST_BYTES", LARGE)
    (first, _) = sites.gateways
    assert sites.finder().find(Before()).offers.keys() == {PARTITION}
    ticket = json.dumps({"journal": "x" * LARGE, "start": 0, "end": 1}).encode()
    acks = json.dumps({"acks": {f"web.n1.0.{n:08x}": 1 for n in range(LARGE // 20)}}).encode()
    memory, _ = usage()
    for _ in range(2):
        with (
            flight.FlightClient(f"grpc://{first.address}") as client,
            pytest.raises(flight.FlightError, match="a ticket has at most"),
        ):
            client.do_get(flight.Ticket(ticket)).read_all()
        with JournalClient(first.address) as asking, pytest.raises(UserError, match="at most"):
            asking.ask(wire.LEASE, acks, lambda answer: answer)
    assert usage()[0] - memory < 8 * LARGE
    assert sites.read(0, 1000).num_rows == 1000
