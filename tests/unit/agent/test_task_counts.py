"""Sums over the last 1, 5 and 15 minutes, and a collector's answers about its tasks with them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from flumeng.agent.collector.measures import SLOT_SECONDS, WINDOWS, MovingCounts, TaskCounts
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT
from flumeng.journal.serving.action_server import ActionServer
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.wire import COUNTERS
from tests.testkit.clock import Clock
from tests.testkit.cluster import come_live, new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.records import COLLECT, PlannedTask

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def moving(clock: Clock) -> Iterator[MovingCounts]:
    moving = MovingCounts(clock)
    yield moving
    moving.check()


def of(moving: MovingCounts, name: str) -> list[int]:
    return [counts[name] for counts in moving.sums().values()]


def test_count_leaves_one_window_after_the_other(moving: MovingCounts, clock: Clock) -> None:
    moving.add({"seen": 7, "lost": 0})
    assert (of(moving, "seen"), of(moving, "lost")) == ([7, 7, 7], [0, 0, 0])
    clock.now += 50.0
    moving.add({"seen": 1})
    assert of(moving, "seen") == [8, 8, 8]
    for later, left in ((10.0, [1, 8, 8]), (240.0, [0, 1, 8]), (600.0, [0, 0, 1]), (60, [0, 0, 0])):
        clock.now += later
        assert of(moving, "seen") == left


@pytest.mark.slow
def test_sum_is_exact_but_for_one_slot(clock: Clock) -> None:
    """Against a plain list of everything that was counted."""
    chance = random.Random(3)
    moving = MovingCounts(clock)
    told: list[tuple[float, int]] = []
    for _ in range(500):
        clock.now += chance.expovariate(1 / 4)
        told.append((clock.now, chance.randrange(5)))
        moving.add({"seen": told[-1][1]})
        moving.check()
        for window, seconds in WINDOWS.items():
            most = sum(n for at, n in told if at > clock.now - seconds)
            least = sum(n for at, n in told if at > clock.now - seconds + SLOT_SECONDS)
            assert least <= moving.sums()[window]["seen"] <= most


def test_counts_of_a_long_idle_time_take_no_memory(moving: MovingCounts, clock: Clock) -> None:
    moving.add({"seen": 1})
    clock.now += 1e7
    moving.add({"seen": 0})
    assert moving.sums() == {window: Counter() for window in WINDOWS}


def row(counts: TaskCounts, key: str = "web/collect.0") -> dict[str, object]:
    (found,) = [one for one in counts.rows() if f"{one['flow']}/{one['task']}" == key]
    return found


def test_task_under_another_epoch_counts_from_zero_with_its_start_time(clock: Clock) -> None:
    counts = TaskCounts(clock, lambda: NOON + clock.now)
    counts.begin("web/collect.0", 1)
    counts.add("web/collect.0", {"processed": 5, "dropped": 1, "parse_errors": None})
    clock.now += 20
    counts.begin("web/collect.0", 1)
    five = dict.fromkeys(WINDOWS, 5)
    assert row(counts) == {
        "flow": "web",
        "task": "collect.0",
        "epoch": 1,
        "since": NOON + 1000,
        "counts": {
            "processed": five,
            "dropped": dict.fromkeys(WINDOWS, 1),
            "parse_errors": None,
            "dead_letters": dict.fromkeys(WINDOWS, 0),
        },
    }
    counts.begin("web/collect.0", 3)
    assert (row(counts)["epoch"], row(counts)["since"]) == (3, NOON + 1020)
    assert row(counts)["counts"] == dict.fromkeys(
        ("processed", "dropped", "parse_errors", "dead_letters"), dict.fromkeys(WINDOWS, 0)
    )


def test_removed_task_is_forgotten_and_its_late_batch_is_no_error() -> None:
    counts = TaskCounts()
    for key in ("web/collect.0", "web/collect.1"):
        counts.begin(key, 1)
    counts.keep({"web/collect.1"})
    counts.add("web/collect.0", {"processed": 5})
    assert [one["task"] for one in counts.rows()] == ["collect.1"]


def test_collector_answers_queries_of_its_counts() -> None:
    counts = TaskCounts(wall=lambda: NOON)
    counts.begin("web/collect.0", 4)
    server = ActionServer("127.0.0.1", {COUNTERS: lambda _: counts.rows()})
    with JournalClient(server.address) as client:
        assert client.counters() == counts.rows()


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    apply_flow(Operator(store, "ann", "", NOON), FLOW)
    tasks = {
        f"collect.{number}": PlannedTask(
            kind=COLLECT, node=node, epoch=2, state="assigned", partitions=()
        )
        for number, node in enumerate(("n1", "n1", "n2", "n3"))
    }
    found = store.read(paths.plan("web"))
    plan = records.Plan(revision=1, tasks=tasks)
    store.write(paths.plan("web"), plan, found.version if found else ABSENT)
    for name, collector in (("n1", "n1:3"), ("n2", "n2:3"), ("n3", "")):
        come_live(store, name, since=NOON, collector=collector)
    return store


def told(task: str, epoch: int = 2) -> dict[str, object]:
    counts: dict[str, object] = {
        name: {"1m": 1, "5m": 20, "15m": 300} for name in ("processed", "dropped", "dead_letters")
    }
    return {
        "flow": "web",
        "task": task,
        "epoch": epoch,
        "since": NOON,
        "counts": {**counts, "parse_errors": None},
    }


def test_flow_shows_the_counts_of_its_owners_and_names_silent_nodes(store: FakeStore) -> None:
    """Of a task that has gone on to another epoch meanwhile, no old counts are shown."""
    shell = Shell(store.tree)
    shell.counted["n1:3"] = [told("collect.0"), told("collect.1", epoch=1), told("ghost")]
    shown = shell.run("flow", "show", "web")
    assert shown.stderr == "flumeng: node n2 reports no event counts\n"
    assert "\nevents in the last 1, 5 and 15 minutes:\n" in shown.stdout
    assert [line for line in shown.stdout.splitlines() if "300" in line] == [
        "collect.0\t1 / 20 / 300\t1 / 20 / 300\t-\t1 / 20 / 300\t2023-11-14 22:13:20"
    ]
    found = shell.json("flow", "show", "web")["counts"]
    expected = {**told("collect.0"), "node": "n1"}
    assert found == {"rows": [expected], "silent": ["n2"]}


def test_task_show_has_its_own_counts(store: FakeStore) -> None:
    shell = Shell(store.tree)
    shell.counted["n1:3"] = [told("collect.0"), told("collect.1")]
    assert "collect.1\t1 / 20 / 300" in shell.run("task", "show", "web/collect.1").stdout
    found = shell.json("task", "show", "web/collect.1")["counts"]
    assert [one["task"] for one in found["rows"]] == ["collect.1"]
    assert shell.json("task", "show", "web/collect.3")["counts"] == {"rows": [], "silent": []}


@pytest.mark.parametrize(
    "answer",
    [
        [{"flow": "web"}],
        [{**told("collect.0"), "counts": {"processed": [1]}}],
        [{**told("collect.0"), "since": "noon"}],
        ["web"],
    ],
    ids=str,
)
def test_malformed_answer_counts_as_no_answer(
    store: FakeStore, answer: list[dict[str, object]]
) -> None:
    shell = Shell(store.tree)
    shell.counted["n1:3"] = answer
    shown = shell.run("flow", "show", "web", "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["counts"]["silent"]) == (0, ["n1", "n2"])


def test_unknown_counts_of_a_newer_collector_are_ignored(store: FakeStore) -> None:
    shell = Shell(store.tree)
    shell.counted["n1:3"] = [{**told("collect.0"), "mood": "well"}]
    assert shell.json("flow", "show", "web")["counts"]["rows"][0]["task"] == "collect.0"
