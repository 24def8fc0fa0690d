"""While ZooKeeper is away the API answers from what was seen before, and from nodes; it says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from flumeng.console.api.reads import READS
from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from tests.testkit.command_line import NOON, Reached
from tests.testkit.filled_cluster import FilledCluster, J, filled_cluster
from tests.unit.console.test_api_reads import filled

HEADER = "flumeng-zookeeper-away-since"
UNSEEN = {
    "ack-commits",
    "ack-intents",
    "cursor-list",
    "cursor-show",
    "queue-lanes",
    "queue-list",
    "queue-show",
    "schema-verify",
}
"""Reads of what ZooKeeper reports no changes of, so that the console keeps no copy."""


@pytest.fixture
def cluster(tmp_path: Path) -> FilledCluster:
    return filled_cluster(tmp_path)


def client_of(console: Console) -> TestClient:
    app = make_app(console, lambda _request: Viewer("anonymous"))
    return TestClient(app, "http://127.0.0.1/api/v1", raise_server_exceptions=False)


def test_reads_go_on_and_say_since_when_zookeeper_is_away(cluster: FilledCluster) -> None:
    client = client_of(cluster.console)
    before = client.get("/flows")
    assert HEADER not in before.headers
    cluster.store.cut()
    cluster.console.pictures.take()
    away = client.get("/flows")
    assert (away.status_code, away.json()) == (200, before.json())
    assert float(away.headers[HEADER]) == NOON
    cluster.store.heal()
    cluster.console.pictures.take()
    assert HEADER not in client.get("/flows").headers


def test_every_read_is_answered_or_is_a_503_that_says_when_to_ask_again(
    cluster: FilledCluster,
) -> None:
    client = client_of(cluster.console)
    for read in READS:
        client.get(filled(read, read.path))
    cluster.shell.seconds += 100
    cluster.store.cut()
    cluster.console.pictures.take()
    refused = set()
    for read in READS:
        answer = client.get(filled(read, read.path))
        assert answer.headers[HEADER] == f"{NOON:.3f}"
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 503:
            refused.add(read.name)
            assert answer.headers["retry-after"] == "5"
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["zookeeper_away_since"] == NOON
            assert answer.json()["detail"]
    assert sorted(refused) == sorted(UNSEEN)


def test_nodes_are_asked_directly_meanwhile(cluster: FilledCluster) -> None:
    client = client_of(cluster.console)
    cluster.store.cut()
    cluster.console.pictures.take()
    assert client.get("/flows/web/lag").json()["events"] == 60
    cluster.shell.positions["n1:7000"] = {J: Reached(10, 140)}
    cluster.shell.seconds += 10
    assert client.get("/flows/web/lag").json()["events"] == 100


def test_a_console_that_saw_nothing_yet_answers_503(cluster: FilledCluster) -> None:
    cluster.store.cut()
    console = Console(cluster.store, clock=lambda: NOON)
    answer = client_of(console).get("/flows")
    assert answer.status_code == 503
    assert answer.json()["zookeeper_away_since"] == NOON
