"""The console over a store in memory, asked as browsers and programs ask."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.console.who.members import Members
from flumeng.console.who.proofs import CERTIFICATE, Bounds, Who
from flumeng.console.who.sessions import Sessions
from flumeng.console.who.viewers import Rights
from tests.testkit.clock import Clock
from tests.testkit.store import FakeStore

PLACE = "http://127.0.0.1:8080"
KEY = b"k" * 32
PROBE = "/api/v1/probe"
PAGE_PROBE = "/probe"
NOON = 1_800_000_000.0


def probe(request: Request) -> Response:
    """Answers who asks; a POST stands for a change of the flow ``web``."""
    viewer = request.state.viewer
    if request.method == "POST":
        viewer.require("web")
    return JSONResponse(
        {"name": viewer.name, "role": viewer.role, "flows": viewer.flows, "csrf": viewer.csrf}
    )


@dataclass
class Asked:
    """A console and its gate ``who``, of which tests replace parts before ``client``."""

    store: FakeStore
    times: Clock = field(default_factory=lambda: Clock(NOON))
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.console = Console(self.store, clock=self.times, monotonic=self.times)
        self.who = Who(
            Members(self.store, None, self.times, self.times),
            Sessions(KEY, self.times),
            Bounds.usual(self.times),
            anonymous=Rights("operator"),
            hosts=frozenset({"localhost"}),
        )
        self.who = replace(self.who, **self.more)

    def client(self, *, certificate: bytes | None = None, url: str = PLACE) -> TestClient:
        app = make_app(self.console, self.who.admit, self.who)
        for path in (PROBE, PAGE_PROBE):
            app.router.routes.insert(0, Route(path, probe, methods=["GET", "POST"]))

        async def asked(scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("state", {})[CERTIFICATE] = certificate
            await app(scope, receive, send)

        return TestClient(asked, base_url=url, follow_redirects=False)


def csrf_of(client: TestClient) -> str:
    """The CSRF token of the client's session, as the page shows it."""
    return str(client.get(PAGE_PROBE).json()["csrf"])


def field_of(page: str, name: str) -> str:
    found = re.search(f'name="{name}" value="([^"]*)"', page)
    assert found, page
    return found[1]


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    file.chmod(0o600)
    return file
