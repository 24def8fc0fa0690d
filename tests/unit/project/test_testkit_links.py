"""Links between data centres: their delay is one of the way and not of their load, the effect of
each fault on a client, and that round trips are counted as a client waits for them."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tests.testkit.counting import MULTI, PING
from tests.testkit.links import HOST, Link, Links
from tests.testkit.waiting import wait_for

DELAY_SECONDS = 0.1
ONE_BY_ONE_SECONDS = 50 * DELAY_SECONDS
"""The time of fifty sequential requests."""
GET = 4
CONNECT = struct.pack(">iii", 8, 0, 0)


class AnsweringServer:
    """Answers each request with its own number, as ZooKeeper does; ``asked`` has them all."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        try:
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
        except OSError:
            return

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                while frame := client.recv(12, socket.MSG_WAITALL):
                    _, xid, kind = struct.unpack(">iii", frame)
                    self.asked.append(xid)
                    client.sendall(request(-2 if kind == PING else xid, 0))
            except OSError:
                return


def request(xid: int, kind: int = GET) -> bytes:
    return struct.pack(">iii", 8, xid, kind)


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    server = AnsweringServer()
    yield server
    server.close()


@pytest.fixture
def links(server: AnsweringServer) -> Iterator[Links]:
    with Links({"far": server.port, "other": server.port}) as links:
        yield links


def connected(link: Link) -> socket.socket:
    host, _, port = link.address.partition(":")
    client = socket.create_connection((host, int(port)), timeout=5)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(CONNECT)
    assert answers(client, 1) == [0]
    return client


def answers(client: socket.socket, count: int) -> list[int]:
    data = b""
    while len(data) < 12 * count and (more := client.recv(12 * count - len(data))):
        data += more
    return [struct.unpack_from(">iii", data, at)[1] for at in range(0, len(data), 12)]


def is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.slow
def test_bytes_sent_together_arrive_together(links: Links) -> None:
    links.delay_seconds = DELAY_SECONDS
    began = time.monotonic()
    with connected(links["far"]) as client:
        greeted = time.monotonic()
        for xid in range(1, 51):
            client.sendall(request(xid))
            time.sleep(0.001)
        assert answers(client, 50) == list(range(1, 51))
        took = time.monotonic() - greeted
    assert greeted - began >= 4 * DELAY_SECONDS
    assert 2 * DELAY_SECONDS <= took < ONE_BY_ONE_SECONDS


def test_round_trips_are_those_that_a_client_waits_for(links: Links) -> None:
    """One for the handshake, one for the session, one for two requests in flight together, one for
    the next request; a ping is none."""
    with connected(links["far"]) as client:
        client.sendall(request(1) + request(2))
        assert answers(client, 2) == [1, 2]
        client.sendall(request(-2, PING))
        assert answers(client, 1) == [-2]
        client.sendall(request(3, MULTI))
        assert answers(client, 1) == [3]
        counts = links["far"].counts
        assert (counts.round_trips, counts.operations) == (4, 4)
        assert counts.requests == {0: 1, GET: 2, PING: 1, MULTI: 1}
        assert (counts.bytes_in, counts.bytes_out) == (60, 60)
    with connected(links["far"]):
        assert [c.round_trips for c in links["far"].connections] == [4, 2]
        assert links["far"].counts.since(counts).round_trips == 2
    assert links["other"].counts.round_trips == 0


def test_round_trips_of_parallel_requests_count_the_longest_chain(links: Links) -> None:
    """Of two requests always in flight, each follows the one before the last."""
    links.delay_seconds = DELAY_SECONDS / 5
    with connected(links["far"]) as client:
        client.sendall(request(1))
        for xid in range(2, 12):
            client.sendall(request(xid))
            assert answers(client, 1) == [xid - 1]
        assert links["far"].counts.round_trips == 2 + 6


def test_frozen_link_accepts_connections_and_answers_nothing(
    links: Links, server: AnsweringServer
) -> None:
    with connected(links["far"]) as client, connected(links["other"]) as other:
        links["far"].freeze()
        client.sendall(request(1))
        other.sendall(request(2))
        assert answers(other, 1) == [2]
        assert server.asked == [0, 0, 2]
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(5)
        links["far"].heal()
        assert answers(client, 1) == [1]


def test_dropped_replies_end_their_connection_when_the_link_heals(
    links: Links, server: AnsweringServer
) -> None:
    with connected(links["far"]) as client, connected(links["far"]) as idle:
        links["far"].drop_replies()
        client.sendall(request(1))
        wait_for(lambda: server.asked[-1] == 1)
        time.sleep(0.05)
        links["far"].heal()
        assert is_ended(client)
        idle.sendall(request(2))
        assert answers(idle, 1) == [2]


def test_every_third_reply_is_lost_with_its_connection(
    links: Links, server: AnsweringServer
) -> None:
    with connected(links["far"]) as client:
        links["far"].lose_replies(every=3)
        for xid in (1, 2):
            client.sendall(request(-2, PING) + request(xid))
            assert answers(client, 2) == [-2, xid]
        client.sendall(request(3))
        assert is_ended(client)
        assert server.asked[-1] == 3
    with connected(links["far"]) as client:
        client.sendall(request(4))
        assert answers(client, 1) == [4]


def test_cut_ends_connections_of_one_link_and_accepts_new_ones(links: Links) -> None:
    with connected(links["far"]) as client, connected(links["other"]) as other:
        links["far"].cut()
        assert is_ended(client)
        connected(links["far"]).close()
        other.sendall(request(1))
        assert answers(other, 1) == [1]


def test_refusing_link_is_at_its_address_again_when_it_heals(links: Links) -> None:
    address = links["far"].address
    with connected(links["far"]) as client:
        links["far"].refuse()
        assert is_ended(client)
    with pytest.raises(ConnectionRefusedError):
        connected(links["far"])
    links["far"].heal()
    assert links["far"].address == address
    connected(links["far"]).close()


def test_requests_are_reported_before_they_are_forwarded(
    links: Links, server: AnsweringServer
) -> None:
    told = []
    with connected(links["far"]) as client:
        links.on_request = lambda name, opcode: told.append((name, opcode, server.asked[-1]))
        client.sendall(request(7, MULTI))
        assert answers(client, 1) == [7]
    assert told == [("far", MULTI, 0)]


@pytest.mark.slow
def test_last_request_of_a_client_arrives_after_its_end(
    links: Links, server: AnsweringServer
) -> None:
    links.delay_seconds = DELAY_SECONDS
    with connected(links["far"]) as client:
        client.sendall(request(9))
    assert 9 not in server.asked
    wait_for(lambda: server.asked[-1] == 9)
