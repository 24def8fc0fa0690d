"""The health of a flow in one word, with its cause and advice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flumeng.control.queries.flow_health import flow_health
from flumeng.control.queries.task_status import TaskRow
from flumeng.platform.health_threshold import HealthThreshold

COLLECT, DISCOVER = "collect.0", "discover.0"


def task(name: str, state: str = "running", health: str = "", *, reads: int = 1) -> TaskRow:
    kind = name.partition(".")[0]
    read = tuple(f"p{number}@kafka" for number in range(reads if kind == "collect" else 0))
    why = "because" if state == "failed" or health else ""
    return TaskRow("web", name, kind, "n1", 1, state, read, why, 1, 1, {}, 0, health)


EMPTY = task(COLLECT, reads=0)


@pytest.mark.parametrize(
    ("tasks", "shown"),
    [
        ([task(DISCOVER), task(COLLECT)], "running"),
        ([task(COLLECT)], "running"),
        ([], "pending (creating tasks)"),
        ([task(DISCOVER, "starting"), EMPTY], "pending (discovering tasks)"),
        ([task(DISCOVER, "failed"), EMPTY], "pending (connecting to stream)"),
        (
            [task(DISCOVER, "failed", "unreachable"), EMPTY],
            "unhealthy supervisor (connecting to stream)",
        ),
        (
            [task(DISCOVER, "failed", "unreachable"), task(COLLECT)],
            "unhealthy supervisor (lost contact with stream)",
        ),
        (
            [task(DISCOVER, "failed", "unhealthy"), task(COLLECT)],
            "unhealthy supervisor (discovery fails)",
        ),
        ([task(DISCOVER, "failed"), task(COLLECT)], "running"),
        ([task(COLLECT, "starting")], "pending (creating tasks)"),
        ([task(COLLECT), task("collect.1", "starting")], "running (creating tasks)"),
        ([task(COLLECT, "failed", "unhealthy"), task("collect.1")], "unhealthy tasks (tasks fail)"),
        ([task(COLLECT, "running", "unhealthy")], "unhealthy tasks (tasks fail)"),
        ([task(COLLECT, "failed")], "pending (tasks fail)"),
        ([task(COLLECT, "starting"), task("collect.1", "failed")], "pending (tasks fail)"),
        ([task(COLLECT), task("collect.1", "failed")], "running (tasks fail)"),
        ([task(COLLECT), task("collect.1", "retrying")], "running (retrying)"),
        ([task(COLLECT, "retrying", "unreachable")], "unhealthy tasks (retrying)"),
    ],
)
def test_flow_health_follows_from_its_tasks(tasks: Sequence[TaskRow], shown: str) -> None:
    found = flow_health("running", "", tasks)
    assert str(found) == shown
    assert bool(found.cause) == bool(found.advice) == (shown != "running")


def test_desired_state_of_an_operator_comes_first() -> None:
    ill = [task(COLLECT, "failed", "unhealthy")]
    assert str(flow_health("suspended", "", ill)) == "suspended"
    assert str(flow_health("stopped", "", ill)) == "stopping"
    assert str(flow_health("deleted", "", [])) == "stopped"
    assert flow_health("running", "line 2", ill).detail == "not readable"


def test_a_flow_is_idle_when_it_runs_and_nothing_comes() -> None:
    assert str(flow_health("running", "", [task(COLLECT)], idle=True)) == "idle"
    assert flow_health("running", "", [task(COLLECT, "starting")], idle=True).state == "pending"


def test_health_changes_after_three_consecutive_failures_or_successes() -> None:
    streak = HealthThreshold()

    def after(*steps: bool) -> str:
        for well in steps:
            if well:
                streak.succeed()
            else:
                streak.fail()
        return streak.health

    assert after(False, False, True, False, False) == ""
    assert after(False) == "unhealthy"
    assert after(True, True, False, True, True) == "unhealthy"
    assert after(True) == ""


def test_flow_is_unreachable_only_when_every_failure_was() -> None:
    streak = HealthThreshold()
    for unreachable in (True, False, True, True):
        streak.fail(unreachable=unreachable)
    assert streak.health == "unhealthy"
    streak.fail(unreachable=True)
    assert streak.health == "unreachable"
    streak.succeed(all_is_done=True)
    assert streak.health == ""


def test_flow_outside_its_window_waits_unless_something_is_wrong_or_nothing_is_left() -> None:
    ready = [task(COLLECT)]
    waiting = flow_health("running", "", ready, waits="it reads site fra at night")
    assert str(waiting) == "running (outside its window)"
    assert (waiting.cause, waiting.advice) == ("it reads site fra at night", "wait, or change `at`")
    failed = [task(COLLECT, "failed", "unhealthy")]
    assert flow_health("running", "", failed, waits="night").detail == "tasks fail"
    assert flow_health("suspended", "", ready, waits="night").detail == "suspended"
