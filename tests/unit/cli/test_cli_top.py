"""``flumeng top``: rates, keys and the screen."""

from __future__ import annotations

import io
import os
import pty
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from cli import top
from cli.top import keyboard
from cli.top_screen import HELP, SORTS, Seen, View, flows_in_order, picture, pressed, spark
from flumeng.control.queries.flow_graph import Rates
from flumeng.control.queries.flow_rates import HISTORY, FlowRates, RateMeter
from flumeng.control.zookeeper import ABSENT
from tests.testkit.cluster import add_journal, add_node, new_cluster
from tests.testkit.command_line import NOON, Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records


def status(**flows: tuple[int, int]) -> dict[str, Any]:
    """A status with flows of these acked events and lags."""
    return {
        "health": "ok",
        "causes": [],
        "masters": ["m1"],
        "nodes": {"live": 1, "registered": 1},
        "flows": [
            {
                "flow": name,
                "state": "running",
                "revision": 1,
                "running": 1,
                "tasks": 1,
                "acked": acked,
                "lag": lag,
                "lag_unknown": 0,
                "lag_seconds": None,
                "lag_trend": "",
            }
            for name, (acked, lag) in flows.items()
        ],
    }


def drawn(seen: Seen, view: View) -> str:
    console = Console(width=160, height=40, file=io.StringIO())
    console.print(picture(seen, view, 40))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rates_are_smoothed_for_both_ends_of_a_flow() -> None:
    meter = RateMeter()
    meter.add(status(a=(0, 0)), {}, 0.0)
    assert meter.of("a") == FlowRates()
    meter.add(status(a=(100, 100)), {"a": Rates(dropped=3.0, dead_letters=1.0)}, 2.0)
    first = meter.of("a")
    assert (first.incoming, first.delivered) == (100.0, 50.0)
    assert (first.dropped, first.dead_letters, first.history) == (3.0, 1.0, (50.0,))
    meter.add(status(a=(1100, 100)), {}, 4.0)  # 500 a second for two seconds
    burst = meter.of("a").delivered
    assert burst is not None
    assert 50.0 < burst < 200.0
    for look in range(3, 200):
        meter.add(status(a=(1100, 100)), {}, 2.0 * look)
    calm = meter.of("a")
    assert calm.delivered == pytest.approx(0.0, abs=0.01)
    assert len(calm.history) == HISTORY


def test_rates_of_a_flow_that_restarted_are_never_negative() -> None:
    meter = RateMeter()
    for second, acked in enumerate((500, 1000, 10, 20)):
        meter.add(status(a=(acked, 0)), {}, float(second))
        rate = meter.of("a").delivered
        assert rate is None or rate >= 0.0
    meter.add(status(), {}, 9.0)
    assert meter.of("a") == FlowRates()


def test_keys_select_sort_open_and_end() -> None:
    rates = {"a": FlowRates(delivered=1.0), "b": FlowRates(delivered=9.0)}
    seen = Seen(status(a=(0, 5), b=(0, 1), c=(0, 3)), rates=rates)
    view = View()
    assert [flow["flow"] for flow in flows_in_order(seen, view)] == ["a", "c", "b"]
    view = pressed(pressed(view, "down", seen), "j", seen)
    assert view.selected == "c"
    assert pressed(view, "up", seen).selected == "a"
    assert pressed(view, "enter", seen).opened == "c"
    assert pressed(pressed(view, "enter", seen), "escape", seen) == view
    by = View()
    for _ in range(list(SORTS).index("out")):
        by = pressed(by, "s", seen)
    assert [flow["flow"] for flow in flows_in_order(seen, by)] == ["b", "a", "c"]
    reverse = pressed(by, "r", seen)
    assert [flow["flow"] for flow in flows_in_order(seen, reverse)] == ["c", "a", "b"]
    assert pressed(view, "x", seen) == view
    assert pressed(view, "q", seen).ended
    assert pressed(pressed(view, "enter", seen), "q", seen).ended


def test_sparkline_is_between_zero_and_the_largest_rate() -> None:
    seen = Seen(status(a=(0, 0)), rates={"a": FlowRates(history=(0.0, 50.0, 100.0))})
    assert spark(seen, "a") == "▁▅█"
    assert spark(Seen(status(a=(0, 0))), "a") == ""


def test_screen_marks_the_selected_flow_among_many() -> None:
    seen = Seen(status(**{f"flow-{n:03}": (0, 0) for n in range(100)}))
    shown = drawn(seen, View(selected="flow-042", sort="flow"))
    assert "> flow-042" in shown
    assert HELP in shown
    assert "and 90 more" in shown


@pytest.fixture
def shell() -> Shell:
    store = new_cluster()
    shell = Shell(store.tree)
    text = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
    shell.run("flow", "apply", "-", typed=text)
    add_node(store, "n1", addresses=("n1:7",), since=NOON)
    add_journal(store, "web.n1.0.aa")
    store.write(paths.ack("web", "main", "web.n1.0.aa"), records.Ack(epoch=1, offset=40), ABSENT)
    shell.positions["n1:7"] = {"web.n1.0.aa": Reached(floor=0, safe=100)}
    return shell


def test_opened_flow_shows_its_partitions_and_problems(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    keys = iter(["down", "enter", "escape", "q"])

    def wait(seconds: float) -> str:
        shell.sleep(seconds / 4)
        return next(keys)

    top.live(shell.context(), FakeStore(shell.tree), wait)
    shown = capsys.readouterr().out
    assert "> web" in shown
    assert "web.n1.0.aa" in shown
    assert "flow web is not planned yet" in shown
    assert list(keys) == []


def test_rates_are_in_the_json(shell: Shell) -> None:
    assert shell.json("top")["rates"]["web"]["delivered"] is None


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal; the second is that of a program."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_keys_come_from_the_terminal_without_enter(terminal: tuple[int, int]) -> None:
    typed, read = terminal
    with keyboard(read) as wait:
        assert wait(0.0) == ""
        for sent, key in ((b"q", "q"), (b"\x1b[A", "up"), (b"\x1b", "escape"), (b"\r", "enter")):
            threading.Timer(0.05, os.write, (typed, sent)).start()
            assert wait(30.0) == key
