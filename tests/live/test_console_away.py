"""The API while a real ZooKeeper is stopped: it answers from what was seen, and recovers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for

WEB = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
HEADER = "flumeng-zookeeper-away-since"
ANSWER_SECONDS = 15.0


@pytest.mark.timeout(300)
def test_the_api_answers_while_zookeeper_is_stopped_and_recovers(tmp_path: Path) -> None:
    server = RealZooKeeper(tmp_path / "zookeeper")
    server.start()
    store = connect(f"{server.address}/c", session_seconds=4.0)
    tree.init(store)
    apply_flow(Operator(store, "ann", "", 0.0), WEB)
    console = Console(store)
    console.pictures.start()
    app = make_app(console, lambda _request: Viewer("anonymous"))
    client = TestClient(app, "http://127.0.0.1/api/v1", raise_server_exceptions=False)
    try:
        wait_for(lambda: client.get("/flows/web").status_code == 200, "no answer", seconds=60)
        before = client.get("/flows").json()
        server.kill()
        wait_for(lambda: HEADER in client.get("/status").headers, "it is not noticed", seconds=60)
        began = time.monotonic()
        for path in ("/flows", "/flows/web", "/nodes", "/journals", "/status", "/audit"):
            away = client.get(path)
            assert away.status_code in (200, 503), away.text
            assert abs(float(away.headers[HEADER]) - time.time()) < 120
        assert client.get("/flows").json() == before
        refused = client.get("/schema/problems")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert time.monotonic() - began < ANSWER_SECONDS
        server.start()
        wait_for(
            lambda: HEADER not in client.get("/status").headers, "it does not recover", seconds=120
        )
        assert client.get("/schema/problems").status_code in (200, 503)
        wait_for(lambda: client.get("/flows/web").status_code == 200, "no answer again", seconds=60)
    finally:
        console.pictures.stop()
        store.close()
        server.kill()
