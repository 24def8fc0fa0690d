"""``status`` knows which flow is behind, by how much, whether that grows, and the likely reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flumeng.control.commands import flows
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.journal.log.progress_history import AGO_SECONDS, ProgressHistory
from flumeng.journal.serving.account import Account
from tests.testkit.cluster import add_journal, add_node, new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

TEXT = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
JOURNAL = "web.n1.0.aa"
ADDRESS = "n1:7000"


def account(waited_seconds: float, *, acked: int, safe: int, before: tuple[int, int]) -> Account:
    return Account(
        term=1,
        durability="disk",
        floor=0,
        acked=acked,
        safe=safe,
        bytes=1,
        max_bytes=1 << 30,
        lost=0,
        waits_at=None,
        closed=False,
        oldest_unacked_us=int((NOON - waited_seconds) * 1e6),
        acked_minute_ago=before[0],
        safe_minute_ago=before[1],
    )


@pytest.fixture
def shell() -> Shell:
    store = new_cluster()
    shell = Shell(store.tree)
    shell.counted[ADDRESS] = []
    apply(shell, TEXT)
    tasks = {
        kind: records.PlannedTask(kind=kind, node="n1", epoch=1, state="assigned")
        for kind in ("ingest", "collect")
    }
    store.write(paths.plan("web"), records.Plan(tasks=tasks), ABSENT)
    add_node(store, "n1", addresses=(ADDRESS,))
    add_journal(store, JOURNAL, in_sync=())
    store.write(paths.ack("web", "main", JOURNAL), records.Ack(epoch=1, offset=100), ABSENT)
    master = records.LiveMaster(host="h", pid=1, version="0", since=NOON)
    store.write(paths.live_master("m1"), master, ABSENT)
    say(shell, "running")
    return shell


def apply(shell: Shell, text: str) -> None:
    flows.apply_flow(Operator(FakeStore(shell.tree), "a", "", 0.0), text)


def say(shell: Shell, state: str, error: str = "") -> None:
    tasks = {
        f"web/{kind}": records.TaskStatus(
            epoch=1,
            revision=1,
            state=state if kind == "collect" else "running",
            error=error if kind == "collect" else None,
        )
        for kind in ("ingest", "collect")
    }
    said = records.NodeStatus(assignment_version=0, tasks=tasks)
    FakeStore(shell.tree).write(paths.status("n1"), said, ANY)


def behind(shell: Shell) -> list[str]:
    return [cause["what"] for cause in status(shell)["causes"] if "is behind" in cause["what"]]


def status(shell: Shell) -> dict[str, Any]:
    found: dict[str, Any] = shell.json("status")
    return found


def test_a_lag_within_its_limit_is_no_problem(shell: Shell) -> None:
    shell.node_accounts[ADDRESS] = {JOURNAL: account(40, acked=100, safe=900, before=(20, 700))}
    found = status(shell)
    assert found["health"] == "ok"
    (flow,) = found["flows"]
    assert (flow["lag"], flow["lag_seconds"], flow["lag_trend"]) == (800, 40, "growing")
    assert "\t800, 40 s, growing\t" in shell.run("status").stdout
    assert "\t800, 40 s, growing\t" in shell.run("top").stdout


@pytest.mark.parametrize(
    ("waited", "before", "trend"),
    [
        (40, (20, 700), "growing"),
        (40, (20, 780), "steady"),  # 760 before, 800 now
        (40, (20, 1200), "shrinking"),
        (1.5, (20, 700), "steady"),  # two batches of a second: goes up and down with each
    ],
)
def test_trend_is_growing_only_beyond_a_tenth_and_two_batches(
    shell: Shell, waited: float, before: tuple[int, int], trend: str
) -> None:
    shell.node_accounts[ADDRESS] = {JOURNAL: account(waited, acked=100, safe=900, before=before)}
    (flow,) = status(shell)["flows"]
    assert flow["lag_trend"] == trend


def test_a_flow_that_is_too_late_is_named_with_its_lag_and_trend(shell: Shell) -> None:
    shell.node_accounts[ADDRESS] = {JOURNAL: account(301, acked=100, safe=900, before=(20, 700))}
    assert behind(shell) == [
        "flow web is behind: 800 events wait, the oldest for 301 s (limit 300 s); the lag is "
        "growing: events arrive faster than its tasks deliver them, or a batch takes long"
    ]
    shell.node_accounts[ADDRESS] = {JOURNAL: account(301, acked=100, safe=900, before=(20, 950))}
    assert behind(shell)[0].endswith("the lag is shrinking: it is catching up")


def test_lag_limit_is_that_of_the_flow(shell: Shell) -> None:
    shell.node_accounts[ADDRESS] = {JOURNAL: account(40, acked=100, safe=900, before=(20, 700))}
    apply(shell, f"{TEXT}lag: {{seconds: 30}}\n")
    assert "(limit 30 s)" in behind(shell)[0]
    apply(shell, f"{TEXT}lag: {{seconds: 30}}\nbatch: {{seconds: 20}}\n")
    assert behind(shell) == [], "three batches may be on their way"


def test_a_frozen_collector_is_seen_though_its_task_runs(shell: Shell) -> None:
    shell.node_accounts[ADDRESS] = {JOURNAL: account(65, acked=100, safe=16_550, before=(100, 200))}
    (what,) = behind(shell)
    assert "16,450 events wait, the oldest for 65 s; the lag is growing" in what
    assert "acked nothing for a minute: a collector hangs" in what


def test_events_that_have_just_arrived_are_no_lag(shell: Shell) -> None:
    shell.node_accounts[ADDRESS] = {JOURNAL: account(3, acked=100, safe=900, before=(100, 100))}
    assert behind(shell) == []


def test_failed_task_is_given_as_the_reason(shell: Shell) -> None:
    say(shell, "failed", "the sink is full")
    shell.node_accounts[ADDRESS] = {JOURNAL: account(900, acked=100, safe=900, before=(100, 900))}
    assert behind(shell)[0].endswith(
        "the lag is steady: task web/collect is failed: the sink is full"
    )


def test_held_source_is_named_with_its_cause(shell: Shell) -> None:
    shell.node_accounts[ADDRESS] = {JOURNAL: account(3, acked=100, safe=900, before=(90, 800))}
    row = {"flow": "web", "source": "tail", "held_by": "the disk is full", "held_seconds": 31.0}
    shell.counted[ADDRESS] = [row]
    (cause,) = status(shell)["causes"]
    assert cause["what"] == (
        "flow web: tail on node n1 has accepted nothing for 31 s: the disk is full"
    )
    assert cause["advice"] == (
        "senders wait; find out why the flow is behind (`flumeng flow lag web`), or free space"
    )
    FakeStore(shell.tree).write(paths.cursor("web", "report"), None, ABSENT)
    (cause,) = status(shell)["causes"]
    assert cause["advice"].endswith("or free space, or report (`flumeng cursor list web`)")


def test_cause_keeps_its_key_though_its_numbers_change(shell: Shell) -> None:
    def look(age: float, seconds: float) -> dict[str, str]:
        shell.node_accounts[ADDRESS] = {
            JOURNAL: account(age, acked=100, safe=int(900 + age), before=(90, 800))
        }
        held = {"flow": "web", "source": "tail", "held_by": "full", "held_seconds": seconds}
        shell.counted[ADDRESS] = [{**held, "lost_files": int(seconds)}]
        return {cause["about"]: cause["what"] for cause in status(shell)["causes"]}

    before, after = look(400, 31), look(500, 131)
    assert (
        [*before]
        == [*after]
        == [
            "flow web: tail on node n1 takes nothing",
            "flow web: tail on node n1: lost files",
            "flow web: lag",
        ]
    )
    assert not {*before.values()} & {*after.values()}


def test_lost_files_are_reported(shell: Shell) -> None:
    shell.node_accounts[ADDRESS] = {JOURNAL: account(3, acked=100, safe=900, before=(90, 800))}
    shell.counted[ADDRESS] = [
        {"flow": "web", "source": "tail", "cut": 1, "missed": 1, "lost_files": lost}
        for lost in (2, 0, 1)
    ]
    (cause,) = status(shell)["causes"]
    assert cause["what"] == (
        "flow web: tail on node n1: files truncated, deleted or compressed before they were fully "
        "read: 3"
    )


def test_position_of_a_minute_ago_is_remembered() -> None:
    past = ProgressHistory()
    for second in range(0, 201, 5):
        past.add("j", acked=second, safe=2 * second, now=float(second))
        past.add("resting", acked=7, safe=7, now=float(second))
    ago = past.minute_ago("j", 200.0)
    assert ago is not None
    assert 200 - AGO_SECONDS - 10 <= ago.acked <= 200 - AGO_SECONDS
    assert past.minute_ago("resting", 200.0) == (0.0, 7, 7)
    assert past.minute_ago("j", 20.0) is None
    past.keep_only(["resting"])
    assert past.minute_ago("j", 200.0) is None


@pytest.mark.parametrize("since", [NOON * 1000, -NOON * 1000, 1e300])
def test_time_beyond_the_calendar_is_shown_as_a_number(shell: Shell, since: float) -> None:
    """As when milliseconds were written for seconds; everything else is shown with it."""
    shell.node_accounts[ADDRESS] = {JOURNAL: account(1, acked=5, safe=5, before=(5, 5))}
    store = FakeStore(shell.tree)
    found = store.read(paths.cluster())
    assert found is not None
    maintenance = records.Maintenance(who="ann", why="disks", since=since)
    store.write(paths.cluster(), replace(found.value, maintenance=maintenance), ANY)
    revision = records.Revision(text=TEXT, author="ann", reason="", time=since)
    store.write(paths.revision("web", "1"), revision, ANY)
    line = records.StoryLine(time=since, who="node", event="start", before="", after="running")
    store.write(paths.story("n1"), records.Story(lines=(line,)), ANY)
    for command in ("status", "cluster show", "flow history web", "flow show web", "node story n1"):
        shown = shell.run(*command.split())
        assert shown.exception is None or isinstance(shown.exception, SystemExit), command
        assert f"{since:g}" in shown.stdout, command
