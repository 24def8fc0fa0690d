"""Changes by the API: each action once, preconditions, keys, rights, and what the audit shows."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from flumeng.console.actions.table import ACTIONS
from flumeng.console.api.openapi import document
from flumeng.console.app import make_app
from flumeng.console.asking import Asking
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import come_live, new_cluster
from tests.testkit.command_line import NOON
from tests.testkit.scripted_store import ScriptedStore, always, once, puts
from tests.testkit.store import FakeStore
from tests.unit.console.clusters import (
    ANN,
    CASES,
    CHANGED,
    FLOW,
    SIGN,
    client_of,
    entries,
    failed_item,
    nothing,
    paused,
    post,
    revision_of,
    rolling,
    state_of,
    web_at_rest,
)
from zkschema import paths

APART = {"flow-validate", "flow-reset", "rollout-resume", "dead-replay", "dead-purge"}
"""Those with tests of their own."""


@pytest.fixture
def store() -> FakeStore:
    return web_at_rest()


@pytest.fixture
def client(store: FakeStore) -> TestClient:
    return client_of(store)


def test_every_action_is_tested() -> None:
    assert ACTIONS.keys() == CASES.keys() | APART


@pytest.mark.parametrize("name", CASES)
def test_an_action_is_rehearsed_done_audited_and_not_repeated(store: FakeStore, name: str) -> None:
    prepare, path, body, command = CASES[name]
    prepare(store)
    client = client_of(store)
    body = {**body, "reason": "ticket 7"}
    dump = store.dump()
    rehearsed = post(client, f"{path}?dry-run=true", body)
    assert rehearsed.status_code == 200, rehearsed.text
    assert command in rehearsed.json()["commands"]
    assert rehearsed.json()["will"]
    assert rehearsed.json()["command"].startswith("flumeng ")
    assert store.dump() == dump
    done = post(client, path, body, idempotency_key="k1")
    assert done.status_code == 200, done.text
    assert [row[:2] for row in entries(store)] == [(ANN.name, command)]
    assert entries(store)[0][2].endswith("ticket 7")
    again = post(client_of(store, now=NOON + 3600), path, body, idempotency_key="k1")
    assert (again.status_code, again.json()) == (200, done.json())
    assert again.headers.get("etag") == done.headers.get("etag")
    assert len(entries(store)) == 1


def test_a_lost_race_is_412_with_the_revision(store: FakeStore, client: TestClient) -> None:
    first = post(client, "/flows/web/apply", {"text": CHANGED}, if_match='"1"')
    assert (first.status_code, first.headers["etag"]) == (200, '"2"')
    lost = post(client, "/flows/web/pause", if_match='"1"')
    assert lost.status_code == 412
    assert lost.json()["detail"] == "flow web is at revision 2, not at revision 1: look at it again"
    assert (lost.json()["revision"], lost.headers["etag"]) == (2, '"2"')
    assert state_of(store) == "running"


@pytest.mark.parametrize(
    ("prepare", "path"), [(nothing, "/flows/web/pause"), (failed_item, "/queues/web/skip")]
)
@pytest.mark.parametrize("moment", ["after_read", "before_commit"])
def test_a_revision_that_comes_after_the_comparison_wins(
    store: FakeStore, prepare: Callable[[FakeStore], None], path: str, moment: str
) -> None:
    prepare(store)

    def apply(_request: object = None) -> None:
        apply_flow(Operator(store, *SIGN), CHANGED)

    when = (lambda wanted: paths.flow("web") in wanted) if moment == "after_read" else always
    hooks: dict[str, Any] = {moment: once(apply, when)}
    lost = post(client_of(ScriptedStore(store.tree, **hooks)), path, if_match='"1"')
    assert (lost.status_code, lost.json()["revision"]) == (412, 2)
    assert (state_of(store), entries(store)) == ("running", [])


@pytest.mark.parametrize("attempt", range(3))
def test_one_of_two_clients_wins_with_if_match(store: FakeStore, attempt: int) -> None:
    clients = [client_of(FakeStore(store.tree)) for _ in range(2)]
    texts = [FLOW.replace("noop", "console"), FLOW.replace("tasks: 2", f"tasks: {3 + attempt}")]

    def apply(number: int) -> int:
        return int(
            post(
                clients[number], "/flows/web/apply", {"text": texts[number]}, if_match='"1"'
            ).status_code
        )

    assert sorted(together(apply)) == [200, 412]
    assert revision_of(store) == 2


@pytest.mark.parametrize("name", CASES)
def test_two_clients_with_one_key_act_once(store: FakeStore, name: str) -> None:
    prepare, path, body, command = CASES[name]
    prepare(store)
    clients = [client_of(FakeStore(store.tree)) for _ in range(2)]
    body = {**body, "reason": "r"}
    answers: dict[int, Any] = {}

    def act(number: int) -> int:
        answers[number] = post(clients[number], path, body, idempotency_key="same")
        return int(answers[number].status_code)

    assert together(act) == [200, 200], [answer.text for answer in answers.values()]
    assert answers[0].json() == answers[1].json()
    assert [row[1] for row in entries(store)] == [command]


def together(act: Callable[[int], int]) -> list[int]:
    """Run two at the same moment; return their results."""
    gate = threading.Barrier(2)
    results = [0, 0]

    def run(number: int) -> None:
        gate.wait(10)
        results[number] = act(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_the_second_reads_after_the_first_committed() -> None:
    """The only order in which no compare-and-set would refuse the second one."""
    store = new_cluster()
    apply_flow(Operator(store, *SIGN), FLOW)
    other = client_of(FakeStore(store.tree))
    raced: list[Any] = []
    slow = ScriptedStore(
        store.tree,
        after_read=once(
            lambda: raced.append(post(other, "/flows/web/handoff", idempotency_key="k")),
            lambda wanted: paths.schema() in wanted or paths.flow("web") in wanted,
        ),
    )
    answer = post(client_of(slow), "/flows/web/handoff", idempotency_key="k")
    assert answer.json() == raced[0].json() == {"flow": "web", "handoff": 1}
    found = store.read(paths.flow("web"))
    assert found is not None and found.value.handoff == 1


def test_a_change_whose_answer_was_lost_is_not_done_again(store: FakeStore) -> None:
    def lose() -> None:
        shaky.connected = False
        raise UnavailableError("the connection was lost")

    shaky = ScriptedStore(store.tree, after_commit=once(lose, puts(paths.flow("web"))))
    console = Console(shaky, clock=lambda: NOON)
    app = make_app(console, lambda _request: ANN)
    operator = console.operator

    def impatient(viewer: Viewer, reason: str) -> Operator:
        made = operator(viewer, reason)
        return Operator(made.store, made.author, made.reason, made.now, settle_seconds=0.0)

    object.__setattr__(console, "operator", impatient)
    client = TestClient(app)
    lost = post(client, "/flows/web/handoff", idempotency_key="k")
    assert lost.status_code == 503
    assert "the outcome is unknown" in lost.json()["detail"]
    shaky.connected = True
    again = post(client, "/flows/web/handoff", idempotency_key="k")
    assert (again.status_code, again.json()) == (200, {"flow": "web", "handoff": 1})
    elsewhere = post(client_of(FakeStore(store.tree)), "/flows/web/handoff", idempotency_key="k")
    assert elsewhere.json() == again.json()
    assert [row[1] for row in entries(store)] == ["flow handoff web"]


def test_an_unchanged_flow_keeps_its_first_answer(store: FakeStore, client: TestClient) -> None:
    first = post(client, "/flows/web/resume", idempotency_key="k").json()
    assert first == {"flow": "web", "changed": False, "error": ""}
    set_flow_state(Operator(store, *SIGN), "web", "suspended")
    assert post(client, "/flows/web/resume", idempotency_key="k").json() == first
    assert state_of(store) == "suspended"


def test_a_key_is_of_one_request_and_one_viewer_and_ends(store: FakeStore) -> None:
    client = client_of(store)
    post(client, "/flows/web/pause", {"reason": "a"}, idempotency_key="k")
    other = post(client, "/flows/web/pause", {"reason": "b"}, idempotency_key="k")
    assert other.status_code == 422
    assert "used before for another request" in other.json()["detail"]
    bob = client_of(store, Viewer("bob", "operator"))
    assert post(bob, "/flows/web/resume", idempotency_key="k").json()["changed"] is True
    later = client_of(store, now=NOON + 86_401)
    late = post(later, "/flows/web/pause", {"reason": "a"}, idempotency_key="k")
    assert late.json()["changed"] is True


def test_all_problems_of_a_body_are_told_at_once(client: TestClient) -> None:
    body = {"revision": "three", "reason": 7, "colour": "red"}
    answer = post(client, "/flows/web/rollback", body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    fields = {row.partition(":")[0] for row in answer.json()["problems"]}
    assert fields == {"revision", "reason", "colour"}


def test_problems_of_a_flow_text_have_their_lines(client: TestClient) -> None:
    text = FLOW.replace("noop", "nop").replace("tasks: 2", "tasks: many")
    problems = post(client, "/flows/web/apply", {"text": text}).json()["problems"]
    assert [row.partition(":")[0] for row in problems] == ["line 4", "line 5"]
    checked = post(client, "/flows/validate", {"text": text}).json()
    assert [row["line"] for row in checked["problems"]] == [4, 5]
    valid = post(client, "/flows/validate", {"text": FLOW}).json()
    assert (valid["flow"], valid["problems"]) == ("web", [])


def test_targets_are_checked_from_a_node_first(store: FakeStore) -> None:
    row = {"kind": "sink", "name": "noop", "state": "failed", "why": "refused"}
    come_live(store, "n1", "n1:7000")
    asking = Asking(targets=lambda *_asked: [row])
    console = Console(store, clock=lambda: NOON, asking=asking)
    client = TestClient(make_app(console, lambda _request: ANN))
    body = {"text": CHANGED, "check_targets": True}
    refused = post(client, "/flows/web/apply", body)
    assert (refused.status_code, revision_of(store)) == (422, 1)
    assert "nothing was applied" in refused.json()["detail"]
    row["state"] = "usable"
    assert post(client, "/flows/web/apply", body).status_code == 200


def test_a_text_of_another_flow_is_refused(client: TestClient) -> None:
    answer = post(client, "/flows/other/apply", {"text": FLOW})
    assert answer.json()["detail"] == "the text is of flow web, not of flow other"


@pytest.mark.parametrize("name", CASES)
def test_a_viewer_may_change_nothing(store: FakeStore, name: str) -> None:
    prepare, path, body, _ = CASES[name]
    prepare(store)
    client, dump = client_of(store, Viewer("eve")), store.dump()
    for query in ("", "?dry-run=true"):
        answer = post(client, path + query, {**body, "reason": "r"})
        assert answer.status_code == 403
        assert "ask an administrator for the role operator" in answer.json()["detail"]
    assert store.dump() == dump


def test_a_viewer_is_refused_where_nothing_would_change(store: FakeStore) -> None:
    client = client_of(store, Viewer("eve"))
    for query in ("", "?dry-run=true"):
        assert post(client, f"/flows/web/resume{query}").status_code == 403
    assert post(client, "/flows/validate", {"text": FLOW}).status_code == 200


def test_an_operator_of_some_flows_changes_these_alone(store: FakeStore) -> None:
    own = client_of(store, Viewer("eve", "operator", flows=("we*",)))
    assert post(own, "/flows/web/pause").status_code == 200
    assert post(own, "/tasks/web/collect.0/restart").status_code != 403
    assert post(own, "/nodes/n1/drain").status_code == 403
    other = client_of(store, Viewer("eve", "operator", flows=("db*",)))
    assert post(other, "/flows/web/resume").status_code == 403
    refused = post(own, "/flows/web/choke", {"rate": "1MB"})
    assert refused.status_code == 403
    assert refused.json()["detail"].startswith("eve may not write /cluster, which this changes too")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"if-match": "7"}, 400),
        ({"if-match": 'W/"7"'}, 400),
        ({"idempotency-key": "a b"}, 400),
        ({"idempotency-key": ""}, 400),
        ({"content-type": "text/plain"}, 415),
    ],
)
def test_bad_headers_are_refused(
    store: FakeStore, client: TestClient, headers: dict[str, str], status: int
) -> None:
    sent = {"content-type": "application/json", **headers}
    answer = client.post("/api/v1/flows/web/pause", content=b"{}", headers=sent)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert state_of(store) == "running"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000])
def test_bad_bodies_are_refused(client: TestClient, body: bytes) -> None:
    sent = {"content-type": "application/json"}
    answer = client.post("/api/v1/flows/web/pause", content=body, headers=sent)
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


def test_bad_parameters_are_refused(client: TestClient) -> None:
    assert post(client, "/flows/web/pause?dry-run=yes").status_code == 400
    assert post(client, "/nodes/n1/drain", if_match='"1"').status_code == 400
    assert post(client, "/maintenance/on").json()["problems"] == ["reason: it is required"]


def test_a_new_flow_is_applied_if_there_is_none(client: TestClient) -> None:
    text = FLOW.replace("flow: web", "flow: db").replace("5514", "5515")
    made = post(client, "/flows/db/apply", {"text": text}, if_none_match="*")
    assert (made.status_code, made.headers["etag"]) == (200, '"1"')
    assert post(client, "/flows/db/apply", {"text": text}, if_none_match="*").status_code == 412


def test_a_flow_moves_to_other_offsets(store: FakeStore) -> None:
    client = client_of(store)
    running = post(client, "/flows/web/reset", {"to": "earliest"})
    assert (running.status_code, running.json()["detail"]) == (
        409,
        "flow web is running: `flumeng flow pause web` first",
    )
    paused(store)
    answer = post(client, "/flows/web/reset", {"to": "earliest"}, idempotency_key="k")
    assert answer.json() == {"flow": "web", "partitions": 0, "resets": [], "accepted": {}}


def test_a_paused_rollout_goes_on(store: FakeStore, client: TestClient) -> None:
    rolling(store)
    assert post(client, "/flows/web/rollout/resume").json() == {"flow": "web", "changed": False}
    post(client, "/flows/web/rollout/pause")
    assert post(client, "/flows/web/rollout/resume").json() == {"flow": "web", "changed": True}


def test_hostile_reasons_are_kept_as_they_are(store: FakeStore, client: TestClient) -> None:
    reason = "<script>alert(1)</script>'\";$(rm -rf /)`x`\u202e"
    assert post(client, "/flows/web/pause", {"reason": reason}).status_code == 200
    assert entries(store)[-1][2] == reason
    seen = post(client, "/flows/web/resume?dry-run=true", {"reason": reason}).json()
    assert shlex.split(seen["command"])[-1] == reason


def test_the_description_has_each_action() -> None:
    described = document()["paths"]
    for action in ACTIONS.values():
        post_of = described[action.path]["post"]
        body = post_of["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"].keys() == {field.name for field in action.body_fields}
        named = {each["name"] for each in post_of["parameters"] if each["in"] == "path"}
        assert named == set(action.names)
        assert ("412" in post_of["responses"]) == ("flow" in action.names)
        assert ("409" in post_of["responses"]) == action.changes
        assert post_of["description"].startswith("On a terminal: `flumeng ")
