"""Each read of the API gives what its command prints with ``--json``, or says why it cannot."""

from __future__ import annotations

import json
import re
from typing import Any

import click
import pytest
from starlette.testclient import TestClient

from cli.main import tree
from flumeng.console.api.openapi import document
from flumeng.console.api.read import Read
from flumeng.console.api.reads import READS
from flumeng.console.app import make_app
from flumeng.console.who.viewers import Viewer
from tests.testkit.command_line import leaves
from tests.testkit.filled_cluster import FilledCluster, J, filled_cluster

NAMES = {
    "flow": "web",
    "node": "n1",
    "task": "collect.0",
    "journal": J,
    "cursor": "lon:copy",
    "site": "fra",
    "component": "kafka",
}
OTHERS = {"queue-lanes": "objects", "queue-show": "objects"}
NO_COMMAND = {"links"}
"""Reads of a part of what a command prints."""
A_FILE = "reads files of the host where it runs"
A_CHANGE = "changes something: it is an action"
A_TRIAL = "runs Spark or a flow's own code on the asking host"
EXCEPTIONS = {
    "flow:validate": A_FILE,
    "flow:try": A_TRIAL,
    "flow:explain": A_TRIAL,
    "flow:tap": "a stream of events: the page of a flow has it",
    "flow:apply": A_CHANGE,
    "flow:rollback": A_CHANGE,
    "flow:pause": A_CHANGE,
    "flow:resume": A_CHANGE,
    "flow:stop": A_CHANGE,
    "flow:reset": A_CHANGE,
    "flow:handoff": A_CHANGE,
    "flow:backfill": A_CHANGE,
    "flow:dead:replay": A_CHANGE,
    "flow:dead:purge": A_CHANGE,
    "node:drain": A_CHANGE,
    "task:restart": A_CHANGE,
    "task:move": A_CHANGE,
    "ack:advance": A_CHANGE,
    "ack:drop": A_CHANGE,
    "site:failover": A_CHANGE,
    "site:failback": A_CHANGE,
    "journal:verify": A_FILE,
    "journal:repair": A_FILE,
    "cluster:secure:show": A_FILE,
    "import:flume-ng": A_FILE,
    "import:flume-og": A_FILE,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> FilledCluster:
    return filled_cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def client(cluster: FilledCluster) -> TestClient:
    app = make_app(cluster.console, lambda _request: Viewer("anonymous"))
    return TestClient(app, "http://127.0.0.1/api/v1", raise_server_exceptions=False)


def filled(read: Read, text: str) -> str:
    names = {**NAMES, "flow": OTHERS.get(read.name, "web")}
    return re.sub(r"\{(\w+)\}", lambda found: names[found[1]], text)


def printed(cluster: FilledCluster, read: Read) -> Any:
    words = filled(read, read.command).split()[1:]
    output = cluster.shell.run(*words, "--json").stdout
    if read.name == "flow-dead-show":
        return [json.loads(line) for line in output.splitlines()]
    return json.loads(output)


@pytest.mark.parametrize("read", READS, ids=lambda read: read.name)
def test_a_read_gives_what_its_command_prints(
    read: Read, cluster: FilledCluster, client: TestClient
) -> None:
    answer = client.get(filled(read, read.path))
    assert answer.status_code == 200, answer.text
    shown = printed(cluster, read)
    if read.name == "links":
        shown = shown["links"]
    assert answer.json() == shown
    assert answer.json(), f"the filled cluster has nothing for {read.name}"


def test_every_command_with_json_has_a_read_or_a_reason_not_to() -> None:
    commands = {
        name
        for name, command in leaves(tree)
        if any("--json" in parameter.opts for parameter in command.params)
    }
    of_an_inventory = {name for name in commands if name.startswith("push:")}
    words = (re.split(r" [{\-]", read.command)[0].split()[1:] for read in READS)
    reads = {":".join(each) for each in words}
    assert commands - of_an_inventory == reads | (EXCEPTIONS.keys() & commands)
    assert not reads & EXCEPTIONS.keys()
    assert EXCEPTIONS.keys() <= commands


def test_every_read_names_a_command() -> None:
    commands = {name.replace(":", " "): command for name, command in leaves(tree)}
    for read in READS:
        words = " ".join(re.split(r" [{\-]", read.command)[0].split()[1:])
        assert isinstance(commands[words], click.Command), read.name


@pytest.mark.parametrize(
    "read", [read for read in READS if read.paging], ids=lambda read: read.name
)
def test_pages_have_all_rows_once_in_the_order_of_the_list(read: Read, client: TestClient) -> None:
    whole = client.get(read.path).json()
    found: list[Any] = []
    at = f"/api/v1{read.path}?limit=1"
    while at:
        answer = client.get(f"http://127.0.0.1{at}")
        assert answer.status_code == 200, answer.text
        assert len(answer.json()) == 1
        found += answer.json()
        link = answer.headers.get("link", "")
        at = link.partition(">")[0][1:]
    assert found == whole


def test_a_page_goes_on_behind_a_row_that_is_gone(client: TestClient) -> None:
    rows = client.get("/flows", params={"after": "htm", "limit": 1}).json()
    assert [row["flow"] for row in rows] == ["hurt"]


def test_lists_are_filtered_by_state_and_label(client: TestClient) -> None:
    def flows(**given: Any) -> list[str]:
        return [row["flow"] for row in client.get("/flows", params=given).json()]

    assert flows(label="team=shop") == ["web"]
    assert flows(label=["team=shop", "team=other"]) == []
    assert flows(state="suspended") == []
    assert "web" in flows(state="running")
    tasks = client.get("/tasks", params={"flow": "web", "state": "down"}).json()
    assert [row["task"] for row in tasks] == ["collect.1"]
    assert [row["node"] for row in client.get("/nodes?label=rack=b").json()] == ["n2"]


def test_all_bad_parameters_are_named(client: TestClient) -> None:
    answer = client.get("/flows?limit=0&state=asleep&stat=1&label=x&after=a&after=b")
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert sorted(said["problems"]) == [
        "after is given 2 times",
        "label=x: expected KEY=VALUE",
        "limit=0: expected a whole number from 1 to 10000",
        "state=asleep: expected one of deleted, running, stopped, suspended, unreadable",
        'there is no parameter stat; did you mean "state"?',
    ]
    assert said["status"] == 400
    assert client.get("/nodes/n1?x=1").status_code == 400


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/flows/wob", 'there is no flow "wob"; did you mean "web"?'),
        ("/flows/web/diff?old=9", "flow web has no revision 9: those from 1 to 2 are kept"),
        ("/flows/%2e%2e/lag", "there is no flow"),
        ("/flows/gone", 'there is no flow "gone"'),
        ("/nodes/n4", 'there is no node "n4"'),
        ("/tasks/web/x", 'there is no task "web/x"'),
        ("/tasks?flow=wob", 'there is no flow "wob"'),
        ("/journals/x", 'there is no journal "x"'),
        ("/cursors/web/x", 'flow web has no cursor "x"'),
        ("/sites/x", 'there is no site "x"'),
        ("/components/kafak", 'named "kafak"; did you mean "kafka"?'),
        ("/cluster?node=x", 'there is no node "x"'),
        ("/nothing", "there is nothing at /api/v1/nothing: see /api/v1/openapi.json"),
    ],
)
def test_what_is_not_there_is_404_with_the_sentence_of_the_command(
    path: str, sentence: str, client: TestClient
) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["status"]) == (404, 404)
    assert sentence in answer.json()["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


def test_other_errors_keep_their_sentence(client: TestClient) -> None:
    answer = client.get("/flows/copy/diff")
    assert answer.status_code == 422
    assert "has one revision only" in answer.json()["detail"]
    damaged = client.get("/flows/hurt")
    assert damaged.status_code == 200
    assert "hurt" in damaged.json()["problem"]


def test_head_options_and_other_methods(client: TestClient) -> None:
    whole, head = client.get("/status"), client.head("/status")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == whole.headers["etag"]
    options = client.options("/status")
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    wrong = client.put("/status")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "GET, HEAD, OPTIONS"
    assert wrong.json()["detail"] == "/api/v1/status knows GET, HEAD, OPTIONS, not PUT"
    assert client.options("/nothing").status_code == 404


def test_the_tag_of_a_flow_begins_with_its_revision_and_changes_with_its_answer(
    cluster: FilledCluster, client: TestClient
) -> None:
    tag = client.get("/flows/web").headers["etag"]
    assert re.fullmatch(r'"2-[0-9a-f]{16}"', tag)
    same = client.get("/flows/web", headers={"If-None-Match": f'"x", W/{tag}'})
    assert (same.status_code, same.content) == (304, b"")
    assert same.headers["etag"] == tag
    cluster.shell.seconds += 10
    cluster.shell.run("flow", "pause", "web")
    try:
        paused = client.get("/flows/web", headers={"If-None-Match": tag})
        assert paused.status_code == 200
        assert paused.headers["etag"].startswith('"2-')
    finally:
        cluster.shell.run("flow", "resume", "web")
        cluster.shell.seconds += 10


def test_an_unforeseen_error_has_no_details_and_is_logged_once(
    cluster: FilledCluster, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    asking = cluster.console.asking

    def broken(_address: str) -> Any:
        raise ZeroDivisionError("inner detail")

    object.__setattr__(cluster.console, "asking", None)
    try:
        answer = client.get("/journals")
    finally:
        object.__setattr__(cluster.console, "asking", asking)
    assert answer.status_code == 500
    assert answer.json()["detail"] == "the console failed: its log has the details"
    assert answer.headers["content-type"] == "application/problem+json"
    assert "content-security-policy" in answer.headers
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_the_page_of_the_api_names_every_operation(client: TestClient) -> None:
    page = client.get("http://127.0.0.1/api")
    assert page.status_code == 200
    for path, methods in document()["paths"].items():
        assert f"<code>{path}</code>" in page.text
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page.text
