"""The first page: what it says of well and unwell clusters, large ones, and hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from flumeng.console.app import make_app
from flumeng.console.asking import Asking
from flumeng.console.console import Console
from flumeng.console.pages.first import FLOWS_SHOWN
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import begin_maintenance
from flumeng.control.zookeeper import ANY
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_flow, add_node, new_cluster
from tests.testkit.large_cluster import fill
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Flow

HOSTILE = "<script>alert(1)</script>\"'&{{7*7777777}}"


def _silent(_address: str) -> Any:
    raise UnavailableError("no answer")


def _client(store: FakeStore) -> TestClient:
    asking = Asking(accounts=_silent, counters=_silent)
    console = Console(store, asking=asking)
    console.pictures.take()
    return TestClient(make_app(console, lambda _request: Viewer("ann", "operator")))


@pytest.fixture(scope="module")
def large() -> Iterator[TestClient]:
    store = new_cluster()
    fill(store, 1000, 400)
    yield _client(store)


def test_an_empty_cluster_says_what_to_do() -> None:
    page = _client(new_cluster()).get("/").text
    assert "no master is live" in page
    assert "start <code>flumeng master</code>" in page


def test_it_has_the_worst_flows_and_links_the_others(large: TestClient) -> None:
    page = large.get("/").text
    assert page.count('scope="row"') == FLOWS_SHOWN
    assert "of 1000" in page
    assert 'href="/flows"' in page


def test_what_others_chose_stays_text() -> None:
    store = new_cluster()
    add_flow(store, "web")
    begin_maintenance(Operator(store, HOSTILE, HOSTILE, 0.0))
    page = _client(store).get("/").text
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)" in page
    assert str(7 * 7777777) not in page


def test_one_damaged_record_is_told_and_the_rest_is_there() -> None:
    store = new_cluster()
    add_flow(store, "web")
    add_flow(store, "broken")
    add_node(store, "n1")
    store.tree.znodes[str(paths.flow("broken"))].data = b"{"
    store.tree.changed(str(paths.flow("broken")))
    page = _client(store).get("/").text
    assert "/flows/broken cannot be read" in page
    assert 'href="/flows/web"' in page


def test_every_answer_forbids_inline_parts_and_frames(large: TestClient) -> None:
    for path in ("/", "/nothing", "/static/console.js", "/api/v1/flows", "/api/v1/nothing"):
        headers = large.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_page_without_a_picture_yet_says_so() -> None:
    store = new_cluster()
    console = Console(store)
    client = TestClient(make_app(console, lambda _request: Viewer("ann")))
    assert "no picture of the cluster has been taken yet" in client.get("/").text


def test_viewers_of_a_picture_share_its_content_and_see_their_own_names() -> None:
    clock, names = Clock(), iter(["ann", "bob", "cid"])
    asking = Asking(accounts=_silent, counters=_silent)
    console = Console(new_cluster(), asking=asking, clock=clock, monotonic=lambda: 0.0)
    console.pictures.take()
    client = TestClient(make_app(console, lambda _request: Viewer(next(names), "viewer")))
    assert "ann (viewer)" in client.get("/").text
    clock.sleep(60)
    page = client.get("/").text
    assert "For 0 s" in page
    assert "bob (viewer)" in page
    assert "ann (viewer)" not in page
    console.pictures.take()
    page = client.get("/").text
    assert 'data-picture="2"' in page
    assert "For 0 s" not in page


def test_viewers_share_a_page_only_with_equal_rights() -> None:
    store = new_cluster()
    add_flow(store, "web")
    store.write(paths.flow("web"), Flow(revision=1, state="suspended"), ANY)
    console = Console(store, asking=Asking(accounts=_silent, counters=_silent))
    console.pictures.take()
    app = make_app(
        console,
        lambda request: Viewer(
            request.headers["name"], "operator" if request.headers["name"] == "ann" else "viewer"
        ),
    )
    pages = {name: TestClient(app).get("/", headers={"name": name}).text for name in ("ann", "bob")}
    assert "/do/flow-resume" in pages["ann"]
    assert "/do/" not in pages["bob"]
    assert "ann (operator)" not in pages["bob"]
