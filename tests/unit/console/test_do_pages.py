"""The pages of changes: a page shows, a second click does it, and nothing is done otherwise."""

from __future__ import annotations

import html
import re
import shlex
from typing import Any

import pytest
from starlette.testclient import TestClient

from flumeng.console.actions.table import ACTIONS
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from tests.testkit.store import FakeStore
from tests.unit.console.clusters import (
    ANN,
    CASES,
    CHANGED,
    FLOW,
    SIGN,
    client_of,
    entries,
    revision_of,
    state_of,
    web_at_rest,
)
from zkschema import paths

IN_SESSION = Viewer("ann@example.com", "operator", "oidc", csrf="secret-of-the-session")
HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
COMMAND = re.compile(r"<code>(flumeng [^<]*)</code>")


@pytest.fixture
def store() -> FakeStore:
    return web_at_rest()


@pytest.fixture
def client(store: FakeStore) -> TestClient:
    return client_of(store, IN_SESSION)


def form_of(page: str, /, **fields: str) -> dict[str, str]:
    """The form of a page, with its hidden fields, as a browser sends it."""
    hidden = {name: html.unescape(value) for name, value in HIDDEN.findall(page)}
    return {**hidden, **fields}


def as_texts(path: str, name: str, body: dict[str, Any]) -> dict[str, str]:
    """The fields of a link."""
    wanted = ACTIONS[name].path.split("/")
    texts = {
        part[1:-1]: value
        for part, value in zip(wanted, path.split("/"), strict=True)
        if part.startswith("{")
    }
    for key, value in body.items():
        texts[key] = " ".join(value) if isinstance(value, list) else str(value)
    return texts


@pytest.mark.parametrize("name", CASES)
def test_a_page_shows_and_a_second_click_does_it_once(store: FakeStore, name: str) -> None:
    prepare, path, body, command = CASES[name]
    prepare(store)
    client, dump = client_of(store, IN_SESSION), store.dump()
    texts = as_texts(path, name, body)
    if name == "maintenance-on":
        texts["reason"] = "disks"
    shown = client.get(f"/do/{name}", params=texts)
    assert shown.status_code == 200, shown.text
    assert "What it will do" in shown.text
    (line,) = COMMAND.findall(shown.text)
    assert shlex.split(html.unescape(line))[:1] == ["flumeng"]
    assert store.dump() == dump
    form = form_of(shown.text, **{**texts_shown(texts, shown.text), "reason": "ticket 7"})
    done = client.post(f"/do/{name}", data=form, follow_redirects=False)
    assert done.status_code == 303, done.text
    result = client.get(done.headers["location"])
    assert result.status_code == 200
    assert html.escape(command) in result.text
    assert "ticket 7" in result.text
    assert '<a href="/' in result.text
    assert [row[:2] for row in entries(store)] == [(ANN.name, command)]
    twice = client.post(f"/do/{name}", data=form, follow_redirects=False)
    assert (twice.status_code, twice.headers["location"]) == (303, done.headers["location"])
    assert len(entries(store)) == 1


def texts_shown(texts: dict[str, str], page: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if f'name="{name}"' in page}


def test_fields_are_asked_for_and_their_problems_shown(client: TestClient) -> None:
    empty = client.get("/do/flow-choke", params={"flow": "web"})
    assert (empty.status_code, "Show what it will do" in empty.text) == (200, True)
    wrong = client.get("/do/flow-choke", params={"flow": "web", "rate": "fast"})
    assert wrong.status_code == 422
    assert 'aria-invalid="true"' in wrong.text


def test_other_fields_than_those_shown_are_shown_first(
    store: FakeStore, client: TestClient
) -> None:
    page = client.get("/do/flow-choke", params={"flow": "web", "rate": "10MB"})
    form = form_of(page.text, rate="1MB")
    again = client.post("/do/flow-choke", data=form, follow_redirects=False)
    assert (again.status_code, "at most 1MB" in again.text) == (200, True)
    assert entries(store) == []
    done = client.post(
        "/do/flow-choke", data=form_of(again.text, rate="1MB"), follow_redirects=False
    )
    assert done.status_code == 303


def test_a_flow_changed_meanwhile_is_shown_and_not_overwritten(
    store: FakeStore, client: TestClient
) -> None:
    page = client.get("/do/flow-apply", params={"flow": "web"})
    assert "tasks: 2" in page.text
    shown = client.post(
        "/do/flow-apply", data=form_of(page.text, text=FLOW.replace("tasks: 2", "tasks: 3"))
    )
    assert "+place: {collect: {tasks: 3" in shown.text
    apply_flow(Operator(store, "bob", "less <b>", SIGN[2]), CHANGED)
    form = form_of(shown.text, text=FLOW.replace("tasks: 2", "tasks: 3"))
    lost = client.post("/do/flow-apply", data=form, follow_redirects=False)
    assert lost.status_code == 412
    assert "flow web is at revision 2, not at revision 1: look at it again" in lost.text
    assert "flow apply web (revision 2)" in lost.text
    assert "less &lt;b&gt;" in lost.text
    assert "+sinks: [console]" in lost.text
    assert revision_of(store) == 2
    form = form_of(lost.text, text=FLOW.replace("tasks: 2", "tasks: 3"))
    assert client.post("/do/flow-apply", data=form, follow_redirects=False).status_code == 303
    assert revision_of(store) == 3


def test_a_link_of_an_older_revision_shows_what_changed(
    store: FakeStore, client: TestClient
) -> None:
    apply_flow(Operator(store, *SIGN), CHANGED)
    page = client.get("/do/flow-pause", params={"flow": "web", "revision_seen": "1"})
    assert page.status_code == 412
    assert "flow web is at revision 2, not at revision 1" in page.text
    assert "+sinks: [console]" in page.text
    assert form_of(page.text)["revision_seen"] == "2"


def test_a_refusal_is_shown_without_a_button(client: TestClient) -> None:
    page = client.get("/do/rollout-abort", params={"flow": "web"})
    assert page.status_code == 409
    assert "no rollout of flow web is under way: revision 1 is current" in page.text
    assert 'class="act"' not in page.text


def test_a_viewer_without_rights_sees_why(store: FakeStore) -> None:
    client = client_of(store, Viewer("eve"))
    page = client.get("/do/flow-pause", params={"flow": "web"})
    assert page.status_code == 403
    assert "eve may not change flow web: ask an administrator" in page.text
    assert "<button" not in page.text.partition("<main")[2]
    done = client.post("/do/flow-pause", data=form_of(page.text), follow_redirects=False)
    assert (done.status_code, state_of(store)) == (403, "running")


@pytest.mark.parametrize("csrf", ["", "wrong", "secret-of-the-sessio\u00e9"])
def test_a_form_of_another_session_does_nothing(
    store: FakeStore, client: TestClient, csrf: str
) -> None:
    page = client.get("/do/flow-pause", params={"flow": "web"})
    form = {**form_of(page.text), "csrf": csrf}
    answer = client.post("/do/flow-pause", data=form, follow_redirects=False)
    assert (answer.status_code, state_of(store)) == (403, "running")


def test_a_link_with_all_of_a_form_does_nothing(store: FakeStore, client: TestClient) -> None:
    page = client.get("/do/flow-pause", params={"flow": "web"})
    again = client.get("/do/flow-pause", params=form_of(page.text))
    assert (again.status_code, state_of(store)) == (200, "running")


HOSTILE = "<img src=x onerror=alert(1)>\"'`$(id)\u202e</textarea><script>"


@pytest.mark.parametrize("name", ACTIONS)
def test_hostile_text_does_not_break_out(store: FakeStore, client: TestClient, name: str) -> None:
    texts = {field.name: HOSTILE for field in ACTIONS[name].fields}
    scripts = client.get("/").text.count("<script")
    for page in (
        client.get(f"/do/{name}", params={**texts, "reason": HOSTILE}),
        client.get(f"/do/{name}", params={"flow": "web", "node": "n1", "reason": HOSTILE}),
        client.post(f"/do/{name}", data={**texts, "csrf": IN_SESSION.csrf, "reason": HOSTILE}),
    ):
        assert page.status_code in (200, 403, 404, 409, 422, 503)
        assert "<img" not in page.text
        assert page.text.count("<script") == scripts
        assert page.text.count("</textarea>") <= 1
    assert entries(store) == []


def test_the_command_line_keeps_a_hostile_reason_in_one_word(client: TestClient) -> None:
    page = client.get("/do/flow-pause", params={"flow": "web", "reason": HOSTILE})
    (line,) = COMMAND.findall(page.text)
    assert shlex.split(html.unescape(line)) == [
        "flumeng", "flow", "pause", "web", "--zk", "zk1:2181/flumeng", "--if-revision", "1",
        "--reason", HOSTILE,
    ]  # fmt: skip


def test_a_hostile_reason_is_shown_as_text_when_done(client: TestClient) -> None:
    page = client.get("/do/flow-pause", params={"flow": "web", "reason": HOSTILE})
    done = client.post("/do/flow-pause", data=form_of(page.text, reason=HOSTILE))
    assert done.status_code == 200
    assert html.escape(HOSTILE, quote=False) in html.unescape(done.text) or "&lt;img" in done.text
    assert "<img" not in done.text


def test_nothing_would_change_is_said(store: FakeStore, client: TestClient) -> None:
    set_flow_state(Operator(store, *SIGN), "web", "suspended")
    page = client.get("/do/flow-pause", params={"flow": "web"})
    assert "Nothing would change: it is so already." in page.text


def test_a_text_is_checked_on_a_page(client: TestClient) -> None:
    csrf = IN_SESSION.csrf
    bad = client.post("/do/flow-validate", data={"csrf": csrf, "text": FLOW.replace("noop", "<b>")})
    assert (bad.status_code, "&lt;b&gt;" in bad.text) == (200, True)
    good = client.post("/do/flow-validate", data={"csrf": csrf, "text": FLOW})
    assert "flow web is valid" in good.text


def test_unknown_actions_and_requests_are_sentences(client: TestClient) -> None:
    assert "flumeng has no cordon" in client.get("/do/node-cordon?node=n1").text
    assert "there is no action" in client.get("/do/flow-paus?flow=web").text
    unknown = client.get("/do/flow-pause/done?request=x&flow=web")
    assert "the audit has no such request" in unknown.text


def test_a_task_may_be_named_with_its_flow(client: TestClient) -> None:
    page = client.get("/do/task-restart", params={"task": "web/collect.0"})
    assert "starts again under epoch" in page.text


def test_a_lost_node_is_given_up_with_what_it_had(store: FakeStore, client: TestClient) -> None:
    store.remove(paths.live_node("n3"), store.read(paths.live_node("n3")).version)  # type: ignore[union-attr]
    page = client.get("/do/node-decommission", params={"node": "n3", "discard": "true"})
    assert page.status_code == 200
    assert "node n3 is removed with its journals" in page.text
    assert "--discard" in page.text


def test_why_a_form_was_refused_stays_until_it_was_read(store: FakeStore) -> None:
    client = client_of(store, IN_SESSION)
    refused = client.post("/do/flow-pause", data={"flow": "web", "csrf": "another"})
    assert "not of your session" in refused.text
    assert "data-still" in refused.text, "a refresh would show an empty form in its place"
