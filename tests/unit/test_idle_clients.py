"""Connections to servers that are gone make room for those to servers that are there."""

from __future__ import annotations

import pytest

from flumeng.platform.idle_clients import EACH, KEEP_SECONDS, SERVERS, IdleClients

now = [0.0]


class Client:
    """Remembers that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def idle() -> IdleClients[str, Client]:
    now[0] = 0.0
    return IdleClients(lambda: now[0])


def kept(idle: IdleClients[str, Client], address: str) -> Client:
    client = Client()
    idle.keep(address, client)
    return client


def test_one_that_was_used_last_is_used_again(idle: IdleClients[str, Client]) -> None:
    assert idle.take("a:1") is None
    first, second = kept(idle, "a:1"), kept(idle, "a:1")
    assert [idle.take("a:1"), idle.take("a:1"), idle.take("a:1")] == [second, first, None]


def test_a_new_server_takes_the_place_of_the_one_that_was_used_longest_ago(
    idle: IdleClients[str, Client],
) -> None:
    clients = [kept(idle, f"s{number}:1") for number in range(SERVERS)]
    idle.keep("s0:1", clients[0])
    new = kept(idle, "new:1")
    assert [client.closed for client in clients] == [False, True, *[False] * (SERVERS - 2)]
    assert idle.take("new:1") is new


def test_what_nobody_used_for_a_minute_is_closed(idle: IdleClients[str, Client]) -> None:
    gone = [kept(idle, "gone:1") for _ in range(2)]
    now[0] = KEEP_SECONDS
    there = kept(idle, "there:1")
    assert ([client.closed for client in gone], there.closed) == ([True, True], False)
    assert idle.take("gone:1") is None


def test_a_few_of_each_server_are_kept(idle: IdleClients[str, Client]) -> None:
    clients = [kept(idle, "a:1") for _ in range(EACH + 2)]
    assert [client.closed for client in clients] == [True] * 2 + [False] * EACH
