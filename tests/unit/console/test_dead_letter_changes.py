"""Replay and purge of dead letters by the API: as the commands do, and once for a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flumeng.connectors.dead_letters.console import ConsoleConnectors
from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError
from tests.testkit.command_line import NOON
from tests.unit.cli.test_cli_flow_dead import SINK, Flow, letter
from tests.unit.console.clusters import ANN, client_of, entries, post
from zkschema import paths


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    made = Flow(tmp_path, "parquet")
    made.bury(*(letter(seq) for seq in range(4)), letter(9, place=SINK))
    return made


def client_for(store: Store, connectors: Any = None) -> TestClient:
    console = Console(store, clock=lambda: NOON, connectors=connectors or ConsoleConnectors())
    return TestClient(make_app(console, lambda _request: ANN))


def files_of(flow: Flow) -> set[str]:
    return {str(path) for path in flow.root.rglob("*") if path.is_file()}


def flows_of(flow: Flow) -> list[str]:
    return flow.store.children(paths.flows())


def test_a_replay_is_rehearsed_started_and_not_repeated(flow: Flow) -> None:
    client, before = client_for(flow.store), files_of(flow)
    seen = post(client, "/flows/web/dead/replay?dry-run=true")
    assert seen.status_code == 200, seen.text
    assert (seen.json()["preview"]["flow"], files_of(flow)) == ("web-replay-1", before)
    done = post(client, "/flows/web/dead/replay", {"reason": "fixed"}, idempotency_key="k")
    assert (done.status_code, done.json()) == (200, seen.json()["preview"])
    assert flows_of(flow) == ["web", "web-replay-1"]
    again = post(client, "/flows/web/dead/replay", {"reason": "fixed"}, idempotency_key="k")
    assert again.json() == done.json()
    assert flows_of(flow) == ["web", "web-replay-1"]
    listed = files_of(flow) - before
    assert len(listed) == 1
    (entry,) = entries(flow.store)[-1:]
    assert entry[0] == ANN.name
    assert entry[1].startswith("flow dead replay web as web-replay-1: ")


def test_a_purge_is_rehearsed_done_and_finished_by_a_repetition(flow: Flow) -> None:
    class Interrupted(ConsoleConnectors):
        def purge(self, *args: Any) -> Any:
            document, _ = super().purge(*args)

            def fail() -> None:
                raise UnavailableError("the store went away")

            return document, fail

    before = files_of(flow)
    seen = post(client_for(flow.store), "/flows/web/dead/purge?dry-run=true").json()
    assert files_of(flow) == before
    broken = client_for(flow.store, Interrupted())
    failed = post(broken, "/flows/web/dead/purge", idempotency_key="k")
    assert (failed.status_code, files_of(flow)) == (503, before)
    done = post(client_for(flow.store), "/flows/web/dead/purge", idempotency_key="k")
    assert (done.status_code, done.json()) == (200, seen["preview"])
    assert flow.left() == []
    flow.bury(letter(1))
    again = post(client_for(flow.store), "/flows/web/dead/purge", idempotency_key="k")
    assert again.json() == done.json()
    assert flow.left() == [1]


def test_all_choices_are_taken(flow: Flow) -> None:
    client = client_for(flow.store)
    body = {"place": "filters", "revision": 1, "since": "2026-11-22T12:00:00Z", "until": "no time"}
    wrong = post(client, "/flows/web/dead/purge?dry-run=true", body)
    assert wrong.json()["detail"].startswith("until no time: expected a time with its zone")
    body["until"] = "2026-11-22T12:02:00Z"
    few = post(client, "/flows/web/dead/purge?dry-run=true", body).json()
    assert (
        few["preview"]["letters"]
        < post(client, "/flows/web/dead/purge?dry-run=true").json()["preview"]["letters"]
    )
    assert "--place filters --revision 1 --since 2026-11-22T12:00:00Z" in few["command"]


def test_a_console_without_connectors_says_so(flow: Flow) -> None:
    refused = post(client_of(flow.store), "/flows/web/dead/replay")
    assert refused.status_code == 503
    assert refused.json()["detail"].endswith("use `flumeng flow dead replay`")
