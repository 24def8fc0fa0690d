"""An incident on a real cluster is found, explained and ended from the console's pages alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.common.exceptions import (
    NoSuchElementException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from flumeng.agent.standalone.embedded import free_port
from tests.live.how_to_hosts import Hosts
from tests.live.one_host import FLUMENG
from tests.live.receiver import Receiver
from tests.testkit.browser import barriers, browser, complaints, overflows, picture
from tests.testkit.waiting import wait_for

IMAGES = Path(__file__).parents[2] / "docs" / "images"
"""The screenshots in the docs. With FLUMENG_IMAGES=1 these tests write them."""
UNIT = "flumeng-console"
LINKS = "return [...document.querySelectorAll('a[href]')].map((a) => a.getAttribute('href'))"
FOCUS = """
const focused = document.activeElement;
const style = getComputedStyle(focused);
const box = focused.getBoundingClientRect();
const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
return [focused.getAttribute("href"), focused === document.body || (outlined && box.width > 0)];
"""
"""Where the focus is, and whether it is seen."""
MORE_STOPS = 60
"""Fields, buttons and tables that take the focus beside links."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture(scope="module")
def url(hosts: Hosts) -> str:
    """The address of a console whose viewers may change everything."""
    listen = f"127.0.0.1:{free_port()}"
    hosts.units.add(
        UNIT, FLUMENG, "console", "--zk", hosts.zk, "--listen", listen, "--allow-changes"
    )
    hosts.units.start(UNIT)
    wait_for(lambda: "ready" in hosts.units.log(UNIT).read_text(), "the console")
    return f"http://{listen}"


@pytest.fixture(scope="module")
def window(url: str) -> Iterator[WebDriver]:
    with browser() as window:
        window.get(url)
        yield window


def shows(window: WebDriver, *words: str, seconds: float = 120.0) -> str:
    """Wait until the content has all words, without loading the page again; return the content."""

    def content() -> str:
        text = window.find_element(By.ID, "main").text
        return text if all(word in text for word in words) else ""

    return wait_for(
        content,
        lambda: f"{words} in {window.find_element(By.ID, 'main').text}",
        seconds=seconds,
        ignoring=(StaleElementReferenceException, WebDriverException),
    )


def click(window: WebDriver, words: str) -> None:
    """Follow the link, or press the button, that has these words."""

    def clicked() -> bool:
        for element in window.find_elements(By.CSS_SELECTOR, "a, button"):
            if words in element.text and element.is_displayed():
                element.click()
                return True
        return False

    wait_for(
        clicked,
        f"nothing to click has {words}",
        seconds=30,
        ignoring=(StaleElementReferenceException, WebDriverException),
    )


def act(window: WebDriver, words: str, reason: str) -> None:
    """Choose an action of the page, and confirm it."""
    click(window, words)
    shows(window, "flumeng flow", seconds=30)
    window.find_element(By.NAME, "reason").send_keys(reason)
    click(window, words)


def confirm(window: WebDriver, reason: str) -> None:
    """Give a reason on the page of an action, and press its button."""
    shows(window, "What it will do", seconds=30)
    window.find_element(By.NAME, "reason").send_keys(reason)
    window.find_element(By.CSS_SELECTOR, "button.act").click()
    shows(window, "Done:", seconds=30)


def show_in_docs(window: WebDriver, name: str, folder: Path) -> None:
    """Make a screenshot, for the docs if that is wanted; the docs have one as wide."""
    file = (IMAGES if os.environ.get("FLUMENG_IMAGES") else folder) / name
    picture(window, file)
    assert _width(file) == _width(IMAGES / name)


def _width(file: Path) -> int:
    """Return the width of a PNG in pixels."""
    return int.from_bytes(file.read_bytes()[16:20], "big")


def test_a_sink_that_is_away(hosts: Hosts, url: str, window: WebDriver, tmp_path: Path) -> None:
    target = Receiver(hosts.folder / "received", free_port())  # it is used by later tests, too
    hosts.apply(
        f"""
flow: orders
sources: [{{generate: {{events_per_second: 100}}}}]
batch: {{seconds: 1}}
sinks: [{{http: {{url: "{target.url}", idempotent: true}}}}]
""",
        tmp_path,
        runs=False,
    )
    window.get(url)
    shows(window, "orders/collect.0 is retrying", "no answer", "Events that wait")
    show_in_docs(window, "console-first.png", tmp_path)
    click(window, "orders")
    shows(window, "orders", "retrying")
    show_in_docs(window, "console-flow.png", tmp_path)
    assert not barriers(window)
    target.start()
    window.get(url)
    shows(window, "Nothing is wrong", seconds=180)
    assert not barriers(window)
    assert not complaints(window)


def test_a_node_that_is_killed(hosts: Hosts, url: str, window: WebDriver) -> None:
    hosts.node("n2")
    window.get(url)
    shows(window, "Nothing is wrong")
    began = time.monotonic()
    hosts.units.stop("node-n2", signal.SIGKILL)
    shows(window, "node n2 is not live", "flumeng node run")
    assert time.monotonic() - began < 60
    click(window, "n2")
    shows(window, "n2", "not live")
    assert not barriers(window)
    hosts.units.start("node-n2")
    window.get(url)
    shows(window, "Nothing is wrong")


def test_a_flow_that_somebody_paused_is_resumed(hosts: Hosts, url: str, window: WebDriver) -> None:
    window.get(f"{url}/flows/orders")
    shows(window, "orders", "running")
    act(window, "Pause", "target moves")
    shows(window, "Done: Pause", "target moves")
    window.get(f"{url}/flows/orders")
    shows(window, "suspended")
    act(window, "Resume", "target is there")
    shows(window, "Done: Resume")
    window.get(f"{url}/flows/orders")
    shows(window, "running")
    audit = hosts.command("cluster", "audit")
    assert "flow pause orders" in audit
    assert "target moves" in audit


def choose(window: WebDriver, href: str) -> None:
    """Press Enter on the first link to an address that begins with ``href``."""

    def chosen() -> bool:
        window.find_element(By.CSS_SELECTOR, f"#main a[href^='{href}']").send_keys(Keys.ENTER)
        return True

    wait_for(
        chosen,
        f"no link to {href}",
        seconds=60,
        ignoring=(NoSuchElementException, StaleElementReferenceException, WebDriverException),
    )


def test_a_bad_canary_is_taken_back(
    hosts: Hosts, url: str, window: WebDriver, tmp_path: Path
) -> None:
    text = f"""
flow: prices
sources: [{{generate: {{events_per_second: 20}}}}]
batch: {{seconds: 1}}
rollout: {{canary: 1, deadline_seconds: 600}}
sinks: [{{files: {{path: "{tmp_path}/lake", format: json}}}}]
"""
    hosts.apply(text, tmp_path)
    table = f'{{csv: "{tmp_path}/none.csv", schema: "host STRING, team STRING"}}'
    bad = f"{text}filters: [{{lookup: {{on: [host], table: {table}}}}}]\n"
    hosts.apply(bad, tmp_path, runs=False)
    window.get(url)
    began = time.monotonic()
    shows(window, "retrying with the new revision 2", "none.csv", "goes back to revision 1")
    choose(window, "/do/rollout-abort?flow=prices")
    confirm(window, "the table is missing")
    assert time.monotonic() - began < 60
    window.get(url)
    shows(window, "Nothing is wrong", seconds=180)
    assert not complaints(window)
    hosts.command("flow", "delete", "prices", "--discard", "--yes")


def test_a_journal_that_fills_while_its_flow_is_paused(
    hosts: Hosts, url: str, window: WebDriver, tmp_path: Path
) -> None:
    hosts.apply(
        f"""
flow: clicks
sources: [{{generate: {{events_per_second: 4000, bytes: 2000}}}}]
journal: {{max_bytes: 16 MiB}}
batch: {{seconds: 1}}
sinks: [{{files: {{path: "{tmp_path}/lake", format: json}}}}]
""",
        tmp_path,
    )
    hosts.command("flow", "pause", "clicks", "--reason", "the lake moves")
    window.get(url)
    shows(window, "flow clicks is paused", "the lake moves", seconds=30)
    shows(window, "of flow clicks", "has accepted nothing", seconds=180)
    began = time.monotonic()
    assert not barriers(window)
    choose(window, "/do/flow-resume?flow=clicks")
    confirm(window, "the lake is there")
    assert time.monotonic() - began < 60
    window.get(f"{url}/flows/clicks")
    shows(window, "clicks", "running")
    hosts.command("flow", "delete", "clicks", "--discard", "--yes")


def test_dead_letters_are_found_and_replayed(
    hosts: Hosts, url: str, window: WebDriver, tmp_path: Path
) -> None:
    hosts.apply(
        f"""
flow: refused
sources: [{{generate: {{events_per_second: 5}}}}]
batch: {{seconds: 1}}
filters: [{{parse: {{format: json, schema: "n BIGINT"}}, on_error: dead-letter}}]
sinks: [{{files: {{path: "{tmp_path}/lake", format: json}}}}]
dead_letters: {{files: {{path: "{tmp_path}/dead", shared: true, format: json}}}}
""",
        tmp_path,
    )
    window.get(url)
    shows(window, "flow refused put", "into dead letters")
    choose(window, "/flows/refused/dead")
    shows(window, "json: malformed", "filters[0].parse", "Replay all")
    assert not barriers(window)
    click(window, "Replay all")
    confirm(window, "the parser is corrected")
    hosts.command("flow", "delete", "refused", "--discard", "--yes")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/flows",
        "/nodes",
        "/nodes/n1",
        "/queues",
        "/journals",
        "/cursors",
        "/audit",
        "/settings",
    ],
)
def test_each_page_is_accessible_at_both_widths(url: str, window: WebDriver, path: str) -> None:
    complaints(window)  # those of earlier tests
    for width in (1280, 500):
        window.set_window_size(width, 900)
        window.get(f"{url}{path}")
        shows(window, "Seen")
        assert not barriers(window)
        assert not overflows(window), f"{path} is wider than {width}"
    assert not complaints(window)


def test_pages_can_be_read_without_scripts(url: str) -> None:
    with browser(scripts=False) as window:
        window.get(url)
        assert 'class="verdict' in window.page_source
        window.get(f"{url}/flows/orders")
        assert "<svg" in window.page_source


@pytest.mark.parametrize("path", ["/", "/flows/orders", "/nodes/n1", "/journals", "/settings"])
def test_the_keyboard_reaches_everything_and_shows_where_it_is(
    url: str, window: WebDriver, path: str
) -> None:
    window.get(f"{url}{path}")
    body = window.find_element(By.TAG_NAME, "body")
    body.send_keys("/")
    assert window.switch_to.active_element.get_attribute("type") == "search"
    window.get(f"{url}{path}")
    links = {link for link in window.execute_script(LINKS) if link}
    reached = set()
    for _ in range(len(links) + MORE_STOPS):
        window.switch_to.active_element.send_keys(Keys.TAB)
        href, shown = window.execute_script(FOCUS)
        assert shown, f"the focus on {href} is not seen"
        reached.add(href)
    assert links <= reached
