"""The picture that all viewers share."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from flumeng.console.asking import Asking
from flumeng.console.console import Console
from flumeng.console.history import STEP_SECONDS
from flumeng.console.verdict import verdict
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_flow, add_journal, add_node, new_cluster
from tests.testkit.store import FakeStore


def _silent(_address: str) -> Any:
    raise UnavailableError("no answer")


def _console(store: FakeStore, clock: Clock, **asking: Any) -> Console:
    functions: dict[str, Any] = {"accounts": _silent, "counters": _silent, **asking}
    return Console(store, asking=Asking(**functions), clock=clock, monotonic=clock)


def test_a_picture_has_the_status_and_since_when_each_cause_is_there() -> None:
    store, clock = new_cluster(), Clock()
    console = _console(store, clock)
    console.pictures.take()
    (about,) = [
        c["about"] for c in console.pictures.latest.status["causes"] if "master" in c["what"]
    ]
    first = console.pictures.latest.since[about]
    assert first.or_longer
    add_flow(store, "web")
    clock.sleep(60)
    console.pictures.take()
    picture = console.pictures.latest
    assert picture.since[about] == first
    new = [c["about"] for c in picture.status["causes"] if "web" in c["what"]]
    assert new
    assert all(picture.since[each].at == first.at + 60 for each in new)
    assert not any(picture.since[each].or_longer for each in new)


def test_the_verdict_names_the_first_cause_and_what_waits() -> None:
    store, clock = new_cluster(), Clock()
    console = _console(store, clock)
    assert verdict(console.pictures.latest).level == "unknown"
    console.pictures.take()
    said = verdict(console.pictures.latest)
    assert said.level == "bad"
    assert said.sentence == "no master is live: nothing is planned or moved"
    assert said.advice == "start `flumeng master`"


def test_without_zookeeper_nodes_are_still_asked_and_it_is_said() -> None:
    store, clock = new_cluster(), Clock()
    add_flow(store, "web")
    add_node(store, "n1", addresses=("n1:1",))
    add_journal(store, "web.n1.0.x")
    ends = [100]

    def accounts(_address: str) -> Mapping[str, Account]:
        account = Account(1, "disk", 0, 0, ends[0], 1, 100, 0, None, False, None)
        return {"web.n1.0.x": account}

    def counters(_address: str) -> Sequence[Mapping[str, Any]]:
        return []

    console = _console(store, clock, accounts=accounts, counters=counters)
    console.pictures.take()
    assert not console.away_since
    store.cut()
    ends[0] = 150
    clock.sleep(10)
    console.pictures.take()
    away = console.pictures.latest
    assert away.away_since == clock()
    assert not away.problem
    assert [flow["lag"] for flow in away.status["flows"]] == [150]
    clock.sleep(10)
    console.pictures.take()
    assert console.pictures.latest.away_since == clock() - 10
    store.heal()
    console.pictures.take()
    assert not console.away_since


def test_a_picture_that_fails_says_why_and_keeps_the_last() -> None:
    store, clock = FakeStore(), Clock()
    console = _console(store, clock)
    console.pictures.take()
    assert "schema" in console.pictures.latest.problem


def test_history_has_a_sample_for_each_step() -> None:
    store, clock = new_cluster(), Clock()
    add_flow(store, "web")
    console = _console(store, clock)
    for _ in range(3):
        console.pictures.take()
        clock.sleep(STEP_SECONDS / 2)
    assert console.pictures.history.of("flow web lag")[-3:] == [None, 0.0, 0.0]


def test_who_waits_for_a_picture_is_woken() -> None:
    console = _console(new_cluster(), Clock())
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.append(console.pictures.newer_than(0, seconds=30))
    )
    waiting.start()
    console.pictures.take()
    waiting.join(30)
    assert found[0].number == 1
    assert console.pictures.newer_than(1, seconds=0.01) is None
