"""Sentences of the pages: names lead to their pages, commands to their actions, all is escaped."""

from __future__ import annotations

from collections.abc import Iterator

import jinja2
import pytest
from starlette.testclient import TestClient
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from flumeng.console.app import make_app
from flumeng.console.asking import Asking
from flumeng.console.console import Console
from flumeng.console.linking import linked
from flumeng.console.pictures import Picture, Since
from flumeng.console.verdict import verdict
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.flow_rates import FlowRates
from flumeng.control.zookeeper import ABSENT
from flumeng.platform.errors import UnavailableError
from flumeng.platform.scrubbing import without_connection
from tests.testkit.cluster import add_flow, add_node, come_live, new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths, records


def _silent(_address: str) -> object:
    raise UnavailableError("no answer")


def _client(store: FakeStore, viewer: Viewer) -> TestClient:
    console = Console(store, asking=Asking(accounts=_silent, counters=_silent))  # type: ignore[arg-type]
    console.pictures.take()
    return TestClient(make_app(console, lambda _request: viewer))


@pytest.fixture
def store() -> Iterator[FakeStore]:
    store = new_cluster()
    add_flow(store, "web")
    store.write(paths.node("n1"), records.Node(uuid="n1", roles=("collect",)), ABSENT)
    yield store


def test_a_node_that_is_not_live_leads_to_its_page_and_to_its_removal(store: FakeStore) -> None:
    page = _client(store, Viewer("ann", "operator")).get("/").text
    assert 'node <a href="/nodes/n1">n1</a> is not live' in page
    assert (
        '<a href="/do/node-decommission?node=n1&amp;discard=true">'
        "<code>flumeng node decommission n1 --discard</code></a>"
    ) in page


def test_a_viewer_sees_commands_without_links(store: FakeStore) -> None:
    page = _client(store, Viewer("vic", "viewer")).get("/").text
    assert "<code>flumeng node decommission n1 --discard</code>" in page
    assert "/do/" not in page


def test_a_paused_flow_is_named_with_who_why_and_the_way_back() -> None:
    store = new_cluster()
    add_node(store, "n1")
    add_flow(store, "web")
    set_flow_state(Operator(store, "ann", "target is <full>", 0.0), "web", "suspended")
    page = _client(store, Viewer("bob", "operator")).get("/").text
    assert 'flow <a href="/flows/web">web</a> is paused and delivers nothing, by ann' in page
    assert "target is &lt;full&gt;" in page
    assert (
        'Next: <a href="/do/flow-resume?flow=web"><code>flumeng flow resume web</code></a>' in page
    )


def test_names_that_are_not_in_the_cluster_and_markup_stay_text() -> None:
    values = {"picture": Picture(), "viewer": None}
    context = jinja2.Template("").new_context(values)
    text = linked(context, "flow <b> on n9, task a/b.0, `<i>`")
    assert text == "flow &lt;b&gt; on n9, task a/b.0, <code>&lt;i&gt;</code>"


def test_dead_letters_are_named_with_their_reasons_and_replay() -> None:
    rates = {"web": FlowRates(dead_letters=3.0), "api": FlowRates()}
    found = verdict(Picture(problem="", rates=rates, flows=()))
    assert found.level == "notice"
    assert found.sentence == "flow web put 180 events into dead letters in the last minute"
    assert "`flumeng flow dead replay web`" in found.advice


@pytest.mark.parametrize(
    "error",
    [
        ConnectTimeoutError("<HTTPConnection(host='h', port=1) at 0x7f>", "timed out"),
        NewConnectionError(HTTPConnection("h", 1), "timed out"),
        OSError("timed out"),
    ],
)
def test_errors_of_a_sink_do_not_name_the_connection_object(error: Exception) -> None:
    assert without_connection(error) == "timed out"


def test_a_process_that_was_killed_is_named_with_its_restart(store: FakeStore) -> None:
    come_live(store, "n1")
    problems = {"collect": "ended with code -9"}
    store.write(
        paths.status("n1"), records.NodeStatus(assignment_version=0, problems=problems), ABSENT
    )
    page = _client(store, Viewer("ann", "operator")).get("/").text
    assert '<a href="/nodes/n1">n1</a>: its process collect ended with code -9' in page
    assert "the node restarts it" in page


def test_the_head_of_a_flow_has_the_cause_and_the_advice_of_the_first_page() -> None:
    store = new_cluster()
    add_node(store, "n1")
    add_flow(store, "web")
    set_flow_state(Operator(store, "ann", "target is full", 0.0), "web", "suspended")
    client = _client(store, Viewer("bob", "operator"))
    for path in ("/", "/flows/web"):
        page = client.get(path).text
        assert "is paused and delivers nothing, by ann" in page
        assert 'href="/do/flow-resume?flow=web"><code>' in page


def test_zookeeper_that_is_away_comes_before_the_causes_seen_earlier() -> None:
    status = {"causes": [{"what": "old", "advice": "x", "about": "old"}], "flows": []}
    found = verdict(Picture(problem="", status=status, away_since=5.0))
    assert found.sentence.startswith("ZooKeeper does not answer")
    assert (found.since, found.more) == (Since(5.0, or_longer=False), [("old", "x")])
