"""Text that cannot be shown, names that cannot be, and methods that must not act."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flumeng.console.app import make_app
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import hand_off
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.history import audit
from tests.testkit.command_line import NOON
from tests.testkit.filled_cluster import FilledCluster, filled_cluster
from tests.unit.console.clusters import client_of as client_of_web
from tests.unit.console.clusters import post, web_at_rest
from tests.unit.console.flow_cluster import Cluster

ANN = Viewer("ann", "admin", csrf="proof")
BROKEN = "\udcff"
"""The byte 255 of an argument or a file name, as Python has it."""
NO_NAMES = ("%2e%2e", "%2e", "%00", "web%0a", "%ed%a0%80", "%ff", "%e2%80%ae", "a" * 300, "%7b%7d")
NAMED = (
    "/flows/{}",
    "/flows/{}/events",
    "/flows/{}/tap",
    "/nodes/{}",
    "/queues/{}",
    "/journals/{}",
    "/cursors/{}/main",
    "/cursors/web/{}",
    "/do/flow-pause?flow={}",
    "/do/flow-delete?flow={}",
    "/do/node-drain?node={}",
    "/do/queue-retry?flow={}",
    "/do/task-move?flow=web&task={}",
    "/do/cursor-end?flow=web&cursor={}",
    "/do/cluster-set?key={}",
    "/api/v1/flows/{}",
    "/api/v1/nodes/{}",
    "/api/v1/queues/{}",
    "/api/v1/cursors/{}/main",
)


@pytest.fixture
def filled(tmp_path: Path) -> FilledCluster:
    return filled_cluster(tmp_path)


def client_of(filled: FilledCluster) -> TestClient:
    app = make_app(filled.console, lambda _request: ANN)
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("path", ["/", "/audit", "/flows/web/events", "/api/v1/audit"])
def test_a_reason_with_bytes_that_are_no_text_breaks_no_page(
    filled: FilledCluster, path: str
) -> None:
    hand_off(Operator(filled.store, "bob", f"disk {BROKEN}", NOON), "web")
    filled.console.pictures.take()
    answer = client_of(filled).get(path)
    assert answer.status_code == 200, answer.text
    assert "disk \\udcff" in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/flows/web/handoff", {"reason": "\ud800"}),
        ("/nodes/n1/label", {"set": ["a=\ud800"]}),
        ("/flows/validate", {"text": "\ud800"}),
        ("/flows/web/dead/purge", {"place": "\ud800"}),
        ("/settings/grace_seconds", {"value": "9\n"}),
        ("/flows/%2e%2e/pause", {}),
        ("/queues/%2e/retry", {}),
    ],
)
def test_text_that_cannot_be_shown_is_refused(
    filled: FilledCluster, path: str, body: dict[str, Any]
) -> None:
    before = audit(filled.store, 500)
    answer = client_of(filled).post(
        f"/api/v1{path}", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
    assert audit(filled.store, 500) == before


@pytest.mark.parametrize("path", NAMED)
def test_a_name_that_nothing_can_have_is_not_found(filled: FilledCluster, path: str) -> None:
    client = client_of(filled)
    for name in NO_NAMES:
        answer = client.get(path.replace("{}", name))
        assert answer.status_code in (404, 422), f"{path} {name}: {answer.text}"


def test_an_error_shows_what_was_asked_even_if_it_is_no_text(filled: FilledCluster) -> None:
    answer = client_of(filled).get("/api/v1/nodes?label=%ed%a0%80")
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("path", ["/flows/web/tap/events", "/api/v1/events"])
def test_head_begins_no_stream(path: str) -> None:
    cluster = Cluster()
    cluster.trials.hang = lambda: pytest.fail("HEAD taps")
    cluster.trials.events = [{"body": "x"}]
    answer = cluster.client().head(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert cluster.trials.tapped == []


@pytest.mark.parametrize("clock", [NOON - 86_400.0, NOON, NOON + 80_000.0])
def test_a_request_acts_once_though_the_clock_jumps(clock: float) -> None:
    store = web_at_rest()
    body, key = {"reason": "x"}, "k"
    first = post(client_of_web(store, now=NOON), "/flows/web/handoff", body, idempotency_key=key)
    again = post(client_of_web(store, now=clock), "/flows/web/handoff", body, idempotency_key=key)
    assert first.json() == again.json() == {"flow": "web", "handoff": 1}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Idempotency-Key": "two words"}, 400),
        ({"If-Match": "0.5", "If-None-Match": "*"}, 400),
        ({"If-Match": '"1"', "If-None-Match": "*"}, 422),
    ],
)
def test_headers_are_read_in_a_dry_run_too(
    filled: FilledCluster, headers: dict[str, str], status: int
) -> None:
    client = client_of(filled)
    answer = client.post("/api/v1/flows/web/pause?dry-run=true", json={}, headers=headers)
    assert answer.status_code == status, answer.text
