"""Text of senders and operators tries to break out of every page, in a real browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from starlette.requests import Request

from flumeng.console import app as console_app
from flumeng.console.console import Console
from flumeng.console.serving import Server
from flumeng.console.who.members import Members
from flumeng.console.who.proofs import Bounds, Who
from flumeng.console.who.sessions import Sessions
from flumeng.console.who.viewers import Rights, Viewer
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import begin_maintenance
from tests.testkit.browser import browser, complaints, overflows
from tests.testkit.command_line import NOON
from tests.testkit.console import KEY
from tests.testkit.filled_cluster import FilledCluster, filled_cluster
from tests.testkit.waiting import wait_for
from tests.unit.console.flow_cluster import FakeLetters, FakeTrials
from tests.unit.console.test_lists import FakeSites, site

BREAK = "window.__broken=1"
EVIL = (
    f"\"'></td></tr></table></pre></textarea></title></svg></script><script>{BREAK}</script>"
    f"<img src=x onerror={BREAK}><svg onload={BREAK}><a href=javascript:{BREAK}>x</a>"
    f"<style>main{{display:none}}</style><base href=//evil.example>"
    f"<form action=//evil.example><button>x</button></form><iframe srcdoc='<script>"
    f"parent.{BREAK}</script>'></iframe> javascript:{BREAK} {{{{7*7}}}} ${{{BREAK}}} "
    "\n\nevent: picture\ndata: 1\n\n\x00\x1b[31m\u202e\u2028\udcff"
)
FREE = frozenset(
    (
        "who", "author", "reason", "why", "error", "cause", "zone", "version", "location", "reader",
        "holder", "command", "event", "before", "after", "host", "went_back", "tag", "description",
        "problem", "boot", "desired",
    )
)  # fmt: skip
"""Fields of records with text that people or senders choose."""
FREE_MAPS = frozenset(("labels", "problems", "troubles", "capacity"))
STARTS = (
    "/", "/flows", "/nodes", "/queues", "/journals", "/cursors", "/audit", "/settings", "/sites",
    "/api", "/flows/new", "/search?q=e", "/queues/objects", "/cursors/web/lon:copy",
    "/journals/web.n1.0.aa", "/flows/web/dead", "/flows/web/tap", "/flows/web/edit",
    "/flows/gone", "/flows/web/", "/flows/hurt", "/nodes/n1", "/nodes/n2", "/do/node-label?node=n1",
    "/do/node-drain?node=n1", "/flows/web/history", "/flows/web/revisions?old=1&new=2",
    "/flows/web/partitions", "/flows/web/events",
)  # fmt: skip
MOST_PAGES, MOST_OF_ONE = 90, 2
INTRUDERS = """
const own = (href) => !href || /^[/?#]/.test(href) || href.startsWith("https://flumeng");
const bad = [];
for (const one of document.querySelectorAll("*")) {
  for (const {name, value} of one.attributes)
    if (name.startsWith("on") || name === "srcdoc") bad.push(one.outerHTML.slice(0, 200));
}
for (const one of document.querySelectorAll("iframe, base, object, embed, style, main img"))
  bad.push(one.outerHTML.slice(0, 200));
for (const one of document.scripts)
  if (!(one.getAttribute("src") || "").startsWith("/static/")) bad.push(one.src + one.text);
for (const one of document.querySelectorAll("a"))
  if (!own(one.getAttribute("href"))) bad.push(one.outerHTML.slice(0, 200));
for (const one of document.forms)
  if (!own(one.getAttribute("action"))) bad.push(one.outerHTML.slice(0, 200));
for (const row of document.querySelectorAll("tbody tr")) {
  const head = row.closest("table").tHead;
  const span = (cells) => [...cells].reduce((sum, cell) => sum + cell.colSpan, 0);
  if (head && span(row.cells) !== span(head.rows[0].cells)) bad.push(row.outerHTML.slice(0, 300));
}
if (document.querySelectorAll("main").length !== 1) bad.push("more than one main");
if (document.body.lastElementChild.localName !== "footer") bad.push("the page ends early");
if (window.__broken !== undefined) bad.push("a script ran");
return bad;
"""


def spoiled(value: Any) -> Any:
    """Return a record's JSON with hostile text in each field of ``FREE``."""
    if isinstance(value, list):
        return [spoiled(each) for each in value]
    if not isinstance(value, dict):
        return value
    changed: dict[str, Any] = {}
    for name, each in value.items():
        if name in FREE and isinstance(each, str):
            changed[name] = EVIL
        elif name in FREE_MAPS and isinstance(each, dict):
            changed[name] = {EVIL: 1.0 if name == "capacity" else EVIL}
        else:
            changed[name] = spoiled(each)
    return changed


def spoil(filled: FilledCluster) -> None:
    Operator(filled.store, EVIL, EVIL, NOON).commit([], f"flow tap web --where {EVIL}")
    for path, znode in filled.store.tree.znodes.items():
        if not znode.data.startswith(b"{damaged") and znode.data:
            znode.data = json.dumps(spoiled(json.loads(znode.data))).encode()
            znode.version += 1
            filled.store.tree.changed(path)


def letters() -> FakeLetters:
    kind = {
        "place": EVIL, "revision": 1, "reason": EVIL, "letters": 1, "replayed": 0, "first": EVIL,
        "last": EVIL, "example": EVIL,
    }  # fmt: skip
    counted = {
        "flow": "web", "path": EVIL, "letters": 1, "replayed": 0, "files": 1, "bytes": 5,
        "kinds": [kind], "damaged": {EVIL: EVIL},
    }  # fmt: skip
    fields = dict.fromkeys(("dead_time", "dead_place", "dead_reason", "body", EVIL), EVIL)
    return FakeLetters(counted, [json.dumps(fields)])


def trials() -> FakeTrials:
    evil = EVIL.replace("\udcff", "")  # chromedriver cannot hand it over
    event = {"body": evil, "host": evil, "ts": evil, "@end": evil, evil: evil}
    step = {
        "step": EVIL, "outcome": EVIL, "before": event, "rows": [event], "dropped": False,
        "lost": False, "depth": 0,
    }  # fmt: skip
    return FakeTrials([event, {"@lost": evil}], [{"event": event, "steps": [step]}])


def sites() -> FakeSites:
    texts = ("error", "push", "digest", "revision", "unproven", "pushed_by", "health", "wave")
    lists: dict[str, Any] = dict.fromkeys(("drift", "causes", "versions"), (EVIL,))
    hostile: Mapping[str, Any] = {**dict.fromkeys(texts, EVIL), **lists}
    return FakeSites([site(f"e{EVIL}", **hostile, asked=NOON)], problem=EVIL)


class Hostile(Who):
    """Every viewer's name at the provider is hostile."""

    def viewer(self, request: Request) -> Viewer:
        return replace(super().viewer(request), name=EVIL, can_leave=True)


def gate(console: Console) -> Who:
    return Hostile(
        Members(console.store, None, time.time, time.monotonic),
        Sessions(KEY, time.time),
        Bounds.usual(time.monotonic),
        anonymous=Rights("admin"),
    )


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    filled = filled_cluster(tmp_path)
    spoil(filled)
    console = Console(
        filled.store,
        hosts=EVIL,
        asking=filled.console.asking,
        clock=lambda: NOON,
        trials=trials(),
        connectors=letters(),
        sites=sites(),
    )
    server = Server(console, "127.0.0.1:0", gate(console))
    server.start()
    wait_for(lambda: console.pictures.latest.number, "no picture", seconds=60)
    yield server.url
    server.stop()


def intruders(window: WebDriver) -> list[str]:
    found: list[str] = window.execute_script(INTRUDERS)
    return found


def links(window: WebDriver) -> list[str]:
    found: list[str] = window.execute_script(
        "return [...document.querySelectorAll('a')].map((one) => one.href.baseVal || one.href)"
    )
    return [str(each) for each in found]


def kind_of(path: str) -> str:
    """The route that a path is of."""
    for module in console_app.PAGES:
        for route in module.ROUTES:
            if route.path_regex.match(path):
                return str(route.path)
    return path


@pytest.mark.timeout(900)
def test_no_text_breaks_out_of_any_page(url: str) -> None:
    waiting, shown = list(STARTS), 0
    seen: set[str] = set()
    kinds: dict[str, int] = {}
    with browser() as window:
        while waiting and len(seen) < MOST_PAGES:
            path = waiting.pop(0)
            kind = kind_of(urlsplit(path).path)
            if path in seen or path.startswith("/api/") or kinds.get(kind, 0) >= MOST_OF_ONE:
                continue
            seen.add(path)
            kinds[kind] = kinds.get(kind, 0) + 1
            window.get(urljoin(url, path))
            assert "Internal Server Error" not in window.title, path
            assert not intruders(window), path
            assert not complaints_beside_status(window), path
            shown += BREAK in window.page_source
            waiting += [
                link.removeprefix(url.rstrip("/")) for link in links(window) if link.startswith(url)
            ]
        assert shown > 20, f"hostile text is on {shown} of {len(seen)} pages only"
        everything = {route.path for module in console_app.PAGES for route in module.ROUTES}
        left = everything - kinds.keys()
        assert left <= {
            "/do/{name}/done", "/flows/{flow}/tap/events", "/flows/{flow}/check",
            "/flows/new/check",
        }, left  # fmt: skip
        tap_and_try(window, url)


def tap_and_try(window: WebDriver, url: str) -> None:
    """Events arrive as the browser shows them by script, and by forms."""
    window.get(f"{url}flows/web/tap")
    window.find_element(By.NAME, "where").send_keys("true")
    window.find_element(By.CSS_SELECTOR, "form.tap").submit()
    wait_for(lambda: BREAK in window.find_element(By.CSS_SELECTOR, ".tapped").text, seconds=30)
    assert not intruders(window)
    window.get(f"{url}flows/web/edit")
    window.find_element(By.ID, "events").send_keys("a line")
    window.find_element(By.CSS_SELECTOR, "button[value=try]").click()
    wait_for(lambda: BREAK in window.page_source, seconds=30)
    assert not intruders(window)
    window.execute_script("document.getElementById('text').value = arguments[0]", EVIL[:200])
    window.find_element(By.ID, "text").send_keys(" ")
    wait_for(lambda: "problem" in window.find_element(By.ID, "problems").text, seconds=30)
    assert not intruders(window)
    assert not complaints_beside_status(window)


def complaints_beside_status(window: WebDriver) -> list[str]:
    """As ``complaints``, without pages that answer with an error, such as a damaged flow's."""
    return [line for line in complaints(window) if "Failed to load resource" not in line]


PAGE_SECONDS = 8.0
"""A browser that has no free connection waits for much longer."""


def test_pages_load_whatever_was_open_before(tmp_path: Path) -> None:
    """Events of earlier pages and hidden tabs take up none of the browser's connections."""
    filled = filled_cluster(tmp_path)
    server = Server(filled.console, "127.0.0.1:0", gate(filled.console))
    server.start()
    with browser() as window:
        window.set_page_load_timeout(PAGE_SECONDS * 4)
        window.get(server.url)
        for number in range(10):
            began = time.monotonic()
            window.get(f"{server.url}{('flows', 'nodes', 'audit')[number % 3]}")
            assert time.monotonic() - began < PAGE_SECONDS, f"page {number}"
        for number in range(8):
            window.switch_to.new_window("tab")
            began = time.monotonic()
            window.get(f"{server.url}nodes")
            assert time.monotonic() - began < PAGE_SECONDS, f"tab {number}"
    server.stop()


def test_words_without_an_end_do_not_widen_a_page(tmp_path: Path) -> None:
    filled = filled_cluster(tmp_path)
    word = "w" * 300
    begin_maintenance(Operator(filled.store, word, word, NOON))
    server = Server(filled.console, "127.0.0.1:0", gate(filled.console))
    server.start()
    wait_for(lambda: filled.console.pictures.latest.audit, "no picture", seconds=60)
    with browser(width=500) as window:
        for page in ("", "audit", "settings", "flows", "nodes"):
            window.get(f"{server.url}{page}")
            assert word in window.page_source or page in ("flows", "nodes")
            assert not overflows(window), page
    server.stop()
