"""Connections to servers that are gone make room for those to servers that are there."""

from __future__ import annotations

import pytest

from flumeng.platform.connection_pool import EACH, KEEP_SECONDS, SERVERS, ConnectionPool
from tests.testkit.clock import Clock

clock = Clock(0.0)


class Client:
    """Remembers that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def idle() -> ConnectionPool[str, Client]:
    clock.now = 0.0
    return ConnectionPool(clock)


def kept(idle: ConnectionPool[str, Client], address: str) -> Client:
    client = Client()
    idle.keep(address, client)
    return client


def test_last_used_client_is_reused_first(idle: ConnectionPool[str, Client]) -> None:
    assert idle.take("a:1") is None
    first, second = kept(idle, "a:1"), kept(idle, "a:1")
    assert [idle.take("a:1"), idle.take("a:1"), idle.take("a:1")] == [second, first, None]


def test_new_server_takes_the_place_of_the_least_recently_used_one(
    idle: ConnectionPool[str, Client],
) -> None:
    clients = [kept(idle, f"s{number}:1") for number in range(SERVERS)]
    idle.keep("s0:1", clients[0])
    new = kept(idle, "new:1")
    assert [client.closed for client in clients] == [False, True, *[False] * (SERVERS - 2)]
    assert idle.take("new:1") is new


def test_client_unused_for_a_minute_is_closed(idle: ConnectionPool[str, Client]) -> None:
    gone = [kept(idle, "gone:1") for _ in range(2)]
    clock.now = KEEP_SECONDS
    there = kept(idle, "there:1")
    assert ([client.closed for client in gone], there.closed) == ([True, True], False)
    assert idle.take("gone:1") is None


def test_idle_clients_of_each_server_are_limited(idle: ConnectionPool[str, Client]) -> None:
    clients = [kept(idle, "a:1") for _ in range(EACH + 2)]
    assert [client.closed for client in clients] == [True] * 2 + [False] * EACH
