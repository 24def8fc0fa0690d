"""Every page of a large cluster in the browser: one damaged record, one silent node, no rights."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from selenium.webdriver.chrome.webdriver import WebDriver

from flumeng.console.console import Console
from flumeng.console.serving import Server
from flumeng.console.who.members import Members
from flumeng.console.who.proofs import Bounds, Who
from flumeng.console.who.sessions import Sessions
from flumeng.console.who.viewers import Rights
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.browser import barriers, browser, complaints
from tests.testkit.large_cluster import large_cluster
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from zkschema import paths

PAGES = (
    "/",
    "/flows",
    "/flows/flow-0007",
    "/flows/flow-0007/partitions",
    "/flows/flow-0007/events",
    "/flows/flow-0007/revisions",
    "/flows/flow-0003",
    "/nodes",
    "/nodes/n0005",
    "/nodes/n0006",
    "/queues",
    "/journals",
    "/cursors",
    "/audit",
    "/settings",
    "/search?q=flow-09",
)
"""Flow 3 has a damaged plan, and node 5 never answers."""
LONGEST_SECONDS = 30.0
"""A page that waited for the silent node in turn with all others would take minutes."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("large")
    server = RealZooKeeper(folder / "zookeeper")
    server.start()
    hosts = f"{server.address}/large"
    store = connect(hosts)
    try:
        tree.init(store)
        with large_cluster(store, folder / "journals"), socket.create_server(("127.0.0.1", 0)) as s:
            _silence(store, "n0005", f"127.0.0.1:{s.getsockname()[1]}")
            _damage(hosts, str(paths.plan("flow-0003")))
            console = Console(store)
            who = Who(
                Members(store, None, time.time, time.monotonic),
                Sessions(b"k" * 32, time.time),
                Bounds.usual(time.monotonic),
                anonymous=Rights("viewer"),
            )
            served = Server(console, "127.0.0.1:0", who)
            served.start()
            wait_for(lambda: not console.pictures.latest.problem, "no picture")
            yield served.url.rstrip("/")
            served.stop()
    finally:
        store.close()
        server.kill()


def _silence(store: Store, node: str, address: str) -> None:
    live = store.read(paths.live_node(node))
    assert live is not None
    store.write(paths.live_node(node), replace(live.value, addresses=(address,)), live.version)


def _damage(hosts: str, path: str) -> None:
    client = KazooClient(hosts)
    client.start()
    client.set(path, b'{"tasks": [')
    client.stop()


@pytest.fixture(scope="module")
def window(url: str) -> Iterator[WebDriver]:
    with browser() as window:
        window.get(url)
        yield window


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_a_large_cluster(url: str, window: WebDriver, page: str) -> None:
    began = time.monotonic()
    window.get(f"{url}{page}")
    assert time.monotonic() - began < LONGEST_SECONDS
    assert "Seen" in window.page_source
    assert "/do/" not in window.page_source, "a viewer without rights sees no action"
    assert not barriers(window)
    assert not complaints(window)


@pytest.mark.long
def test_the_first_page_names_the_damage_and_the_silent_node(url: str, window: WebDriver) -> None:
    window.get(url)
    text = wait_for(
        lambda: _words(window, "n0005 has not answered"), "the silent node is not named"
    )
    assert "/flows/flow-0003/plan cannot be read" in text


def _words(window: WebDriver, words: str) -> str:
    text: str = window.execute_script("return document.getElementById('main').textContent")
    return text if words in text else ""
