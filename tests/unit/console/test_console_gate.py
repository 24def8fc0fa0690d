"""The gate of the console: other sites, foreign hosts, sessions, CSRF tokens and bounds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from flumeng.console.app import Identified, make_app
from flumeng.console.who.gate import BODY_BYTES, HEAD_BYTES, Gate
from flumeng.console.who.proofs import Bounds
from flumeng.console.who.rates import Rates
from flumeng.console.who.refusals import LogInError
from flumeng.console.who.sessions import SECONDS, Seal, Sessions
from flumeng.console.who.viewers import Rights, Viewer
from tests.testkit.clock import Clock
from tests.testkit.console import KEY, PAGE_PROBE, PLACE, PROBE, Asked, csrf_of
from tests.testkit.store import FakeStore

OTHER = "http://evil.example"


@pytest.fixture
def asked(store: FakeStore) -> Asked:
    return Asked(store)


def test_anonymous_viewer_on_loopback_may_look(asked: Asked) -> None:
    asked.who = replace(asked.who, anonymous=Rights())
    client = asked.client()
    answer = client.get(PROBE).json()
    assert (answer["name"], answer["role"]) == ("anonymous", "viewer")
    assert client.post(PROBE, json={}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080"])
def test_own_hosts_are_served(asked: Asked, host: str) -> None:
    assert asked.client().get(PROBE, headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8080", "localhost.evil.example", "", "a@b:x"])
def test_rebound_host_is_refused(asked: Asked, host: str) -> None:
    answer = asked.client().get(PROBE, headers={"host": host})
    assert answer.status_code == 421
    assert "--url" in answer.json()["detail"]


def test_form_needs_the_token_of_its_session(asked: Asked) -> None:
    client = asked.client()
    token = csrf_of(client)
    assert client.post(PAGE_PROBE, data={"csrf": token}).status_code == 200
    assert client.post(PAGE_PROBE, data={"a": "b"}).status_code == 403
    assert client.post(PAGE_PROBE, headers={"x-csrf-token": token}).status_code == 200
    of_another = csrf_of(asked.client())
    assert client.post(PAGE_PROBE, data={"csrf": of_another}).status_code == 403
    assert asked.client().post(PAGE_PROBE, data={"csrf": token}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": OTHER},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:3000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", [PROBE, PAGE_PROBE])
def test_change_from_another_site_is_refused(
    asked: Asked, headers: Mapping[str, str], path: str
) -> None:
    """Even with the token, which such a page cannot know."""
    client = asked.client()
    given = {**headers, "x-csrf-token": csrf_of(client)}
    answer = client.post(path, json={}, headers=given)
    assert answer.status_code == 403
    assert "another site" in answer.text


def test_api_with_a_session_needs_a_token_or_the_own_origin(asked: Asked) -> None:
    client = asked.client()
    token = csrf_of(client)
    assert client.post(PROBE, json={}).status_code == 403
    assert client.post(PROBE, json={}, headers={"x-csrf-token": token}).status_code == 200
    assert client.post(PROBE, json={}, headers={"origin": PLACE}).status_code == 200
    assert client.post(PROBE, data={"a": "b"}, headers={"origin": PLACE}).status_code == 403
    assert client.post(PROBE, json={}, headers={"x-csrf-token": "wrong"}).status_code == 403


def test_program_without_a_session_needs_no_token(asked: Asked) -> None:
    assert asked.client().post(PROBE, json={}).status_code == 200
    assert asked.client().post(PROBE, content="a", headers={"content-type": "text/plain"}).is_error


def test_another_site_may_link_but_not_load(asked: Asked) -> None:
    client = asked.client()
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get(PAGE_PROBE, headers=link).status_code == 200
    load = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get(PROBE, headers=load).status_code == 403


def test_session_cookie_is_closed_to_scripts_and_bounded(asked: Asked) -> None:
    answer = asked.client().get(PAGE_PROBE)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("flumeng-8080=")
    assert cookie.endswith("; Path=/; Max-Age=28800; HttpOnly; SameSite=Lax")
    assert answer.headers["cache-control"] == "no-store"
    asked.who = replace(asked.who, url="https://console.example", hosts=frozenset({"c.example"}))
    cookie = asked.client().get(PAGE_PROBE).headers["set-cookie"]
    assert cookie.startswith("__Host-flumeng=")
    assert cookie.endswith("; HttpOnly; SameSite=Lax; Secure")


def test_damaged_or_foreign_cookie_begins_a_new_session(asked: Asked) -> None:
    client = asked.client()
    token = csrf_of(client)
    cookie = client.cookies["flumeng-8080"]
    text, _, mac = cookie.partition(".")
    foreign = Sessions(b"x" * 32, asked.times)
    for bad in (f"{text[:-1]}A.{mac}", f"{text}.", text, "é", foreign.sealed(foreign.begin())):
        header = {b"cookie": f"flumeng-8080={bad}".encode()}
        answer = asked.client().post(PAGE_PROBE, data={"csrf": token}, headers=header)
        assert answer.status_code == 403, bad


def test_session_ends(asked: Asked) -> None:
    client = asked.client()
    token = csrf_of(client)
    asked.times.now += SECONDS - 1
    assert client.post(PAGE_PROBE, data={"csrf": token}).status_code == 200
    asked.times.now += 1
    cookie = client.cookies["flumeng-8080"]
    assert asked.who.sessions.read(cookie) is None


def test_sealed_text_of_another_kind_is_not_opened() -> None:
    seal = Seal(KEY)
    assert seal.opened("session", seal.sealed("session", {"a": 1})) == {"a": 1}
    assert seal.opened("session", seal.sealed("login", {"a": 1})) is None


def test_two_consoles_with_one_key_share_sessions(store: FakeStore, asked: Asked) -> None:
    client = asked.client()
    token, cookie = csrf_of(client), client.cookies["flumeng-8080"]
    other = Asked(store).client()
    other.cookies.set("flumeng-8080", cookie)
    assert other.post(PAGE_PROBE, data={"csrf": token}).status_code == 200


def test_large_requests_are_refused(asked: Asked) -> None:
    client = asked.client()
    answer = client.get(PROBE, headers={"x-a": "a" * HEAD_BYTES})
    assert answer.status_code == 431
    length = {"content-length": str(BODY_BYTES + 1), "content-type": "application/json"}
    assert client.post(PROBE, content=b"", headers=length).status_code == 413

    def endless() -> bytes:
        return b"a" * (BODY_BYTES + 1)

    chunks = (part for part in [endless()])
    assert client.post(PROBE, content=chunks).status_code == 413


def test_address_that_asks_too_often_waits(asked: Asked) -> None:
    times = asked.times
    few = Rates(1, 3, times)
    asked.who = replace(asked.who, bounds=replace(asked.who.bounds, address=few))
    client = asked.client()
    assert [client.get(PROBE).status_code for _ in range(4)] == [200, 200, 200, 429]
    answer = client.get(PROBE)
    assert answer.headers["retry-after"] == "1"
    times.now += 1
    assert client.get(PROBE).status_code == 200


def test_changes_are_bounded_more_strictly_than_reads(asked: Asked) -> None:
    few = replace(asked.who.bounds, changes=Rates(1, 2, asked.times))
    asked.who = replace(asked.who, bounds=few)
    client = asked.client()
    token = {"x-csrf-token": csrf_of(client)}
    statuses = [client.post(PROBE, json={}, headers=token).status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert client.get(PROBE).status_code == 200


def test_rates_of_one_key_leave_others_alone() -> None:
    times = Clock()
    rates = Rates(2, 2, times)
    assert [rates.take("a") for _ in range(3)] == [0, 0, 0.5]
    assert rates.take("b") == 0
    times.now += 0.5
    assert rates.take("a") == 0
    assert rates.take("a") == pytest.approx(0.5)


def test_usual_bounds_let_a_page_load(asked: Asked) -> None:
    bounds = Bounds.usual(asked.times)
    assert not any(bounds.name.take("a") for _ in range(100))
    assert sum(not bounds.logins.take("a") for _ in range(100)) == 10


def test_answers_name_no_server_and_forbid_inline_parts(asked: Asked) -> None:
    answer = asked.client().get("/login")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*src=)|<style|style=|onclick", answer.text)
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_body_that_ends_early_is_not_passed_on(asked: Asked) -> None:
    """Else a part of a flow's text would become its revision."""
    sent: list[Any] = []
    messages = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_call: object) -> None:
        raise AssertionError("the request was passed on")

    app = make_app(asked.console, asked.who.admit, asked.who)
    gate = Gate(never, asked.who, lambda _request, error: PlainTextResponse(str(error), 408))
    scope = {
        "type": "http",
        "app": app,
        "method": "POST",
        "path": PROBE,
        "query_string": b"",
        "scheme": "http",
        "server": ("127.0.0.1", 8080),
        "headers": [(b"host", b"127.0.0.1:8080"), (b"content-length", b"10")],
    }
    asyncio.run(gate(scope, receive, send))
    assert sent[0]["status"] == 408


def test_long_answer_ends_when_its_viewer_loses_the_right() -> None:
    admitted = iter([Viewer("al"), Viewer("al")])

    def identify(_request: Request) -> Viewer:
        viewer = next(admitted, None)
        if viewer is None:
            raise LogInError("expelled")
        return viewer

    async def parts() -> AsyncIterator[str]:
        for number in range(5):
            yield f"{number} "

    async def stream(_request: Request) -> StreamingResponse:
        return StreamingResponse(parts())

    app = Identified(Starlette(routes=[Route("/", stream)]), identify, again_seconds=0.0)
    assert TestClient(app).get("/").text == "0 "
