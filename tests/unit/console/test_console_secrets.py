"""The console shows references to secrets, never secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient

import flumeng.console
from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from tests.testkit.cluster import add_node
from tests.testkit.store import FakeStore

SECRET = "the-secret-of-the-database"
FLOW = """flow: web
sources: [syslog: {listen: '127.0.0.1:0'}]
sinks: [kafka: {brokers: ["k:9092"], topic: logs, username: al, password: "${secret:db}"}]
"""
NAMES = {"flow": "web", "node": "n1"}
ENDLESS = ("/events", "/tap")


def paths_of(routes: list[BaseRoute], above: str = "") -> list[str]:
    """Every path that can be read, with names filled in."""
    found: list[str] = []
    for route in routes:
        if isinstance(route, Mount):
            found += paths_of(list(route.routes), above + route.path)
        elif isinstance(route, Route) and "GET" in (route.methods or ()):
            path = re.sub(r"\{(\w+)(:\w+)?\}", lambda name: NAMES.get(name[1], "x"), route.path)
            found.append(above + path)
    return [path for path in found if not path.endswith(ENDLESS)]


def test_no_answer_has_a_secret(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_DB", SECRET)
    add_node(store, "n1")
    apply_flow(Operator(store, "al", "", 1.0), FLOW)
    app = make_app(Console(store), lambda _request: Viewer("al", "operator"))
    client = TestClient(app, raise_server_exceptions=False)
    answers = [client.get(path) for path in paths_of(list(app.routes))]
    assert any(answer.status_code == 200 for answer in answers)
    assert not any(SECRET in answer.text for answer in answers)


def test_no_part_of_the_console_looks_secrets_up() -> None:
    """The command gives the provider's secret to it, resolved."""
    for file in Path(flumeng.console.__file__).parent.rglob("*.py"):
        assert "platform.secrets" not in file.read_text(), file
        assert "platform import secrets" not in file.read_text(), file
