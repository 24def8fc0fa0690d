"""Both questions of a picture share a connection, which is closed after them."""

from __future__ import annotations

from typing import Any

import pytest

from flumeng.console.node_connections import KEPT_SECONDS, NodeConnections
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock


class Client:
    def __init__(self) -> None:
        self.fails = self.closed = False

    def accounts(self) -> dict[str, Any]:
        if self.fails:
            raise UnavailableError("no answer")
        return {}

    def counters(self) -> list[Any]:
        return []

    def close(self) -> None:
        self.closed = True


class Nodes:
    """Counts connections. ``clients``: all that were opened, in order."""

    def __init__(self, **options: int) -> None:
        self.clock = Clock()
        self.clients: list[Client] = []
        self.kept = NodeConnections(self.clock, self._connect, **options)

    def _connect(self, _address: str) -> Any:
        self.clients.append(Client())
        return self.clients[-1]


def test_both_questions_share_a_connection_that_is_closed_then() -> None:
    nodes = Nodes()
    for _ in range(3):
        nodes.kept.accounts("n1")
        nodes.kept.counters("n1")
    assert [client.closed for client in nodes.clients] == [True] * 3
    nodes.kept.accounts("n2")
    assert not nodes.clients[-1].closed
    nodes.kept.close()
    assert nodes.clients[-1].closed


def test_a_failed_connection_is_closed_and_not_used_again() -> None:
    nodes = Nodes()
    nodes.kept.accounts("n1")
    nodes.clients[0].fails = True
    with pytest.raises(UnavailableError):
        nodes.kept.accounts("n1")
    assert nodes.clients[0].closed
    nodes.kept.accounts("n1")
    assert len(nodes.clients) == 2


def test_old_connections_are_closed_also_of_nodes_that_are_gone() -> None:
    nodes = Nodes()
    nodes.kept.accounts("gone")
    nodes.clock.now += KEPT_SECONDS + 1
    nodes.kept.accounts("n1")
    assert [client.closed for client in nodes.clients] == [True, False]


def test_the_number_of_kept_connections_is_bounded() -> None:
    nodes = Nodes(most=2)
    for name in ("n1", "n2", "n3"):
        nodes.kept.accounts(name)
    assert [client.closed for client in nodes.clients] == [False, False, True]


def test_a_node_that_was_started_again_at_its_address_answers() -> None:
    kept = NodeConnections(Clock())
    port = 0
    for _ in range(2):
        server = JournalServer("127.0.0.1", port, journals=dict)
        address, port = server.address, _port(server.address)
        try:
            assert kept.accounts(address) == {}
        finally:
            server.stop()
    kept.close()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
