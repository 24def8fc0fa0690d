"""Standbys as operators see them."""

from __future__ import annotations

from dataclasses import replace

from flumeng.config import CollectPlace, Place
from flumeng.control.queries import health
from flumeng.control.queries.task_status import TaskRow, rows
from flumeng.control.snapshot.snapshot import FlowView
from flumeng.control.zookeeper import Version
from zkschema.records import Flow, NodeStatus, Plan, PlannedTask, TaskStatus

SAID = TaskStatus(epoch=0, revision=1, state="standby", error="no Java")


def row(replicas: int, *standbys: str, **said: str) -> TaskRow:
    """The row of a task with these standbys; ``said`` are the states that live nodes report."""
    task = PlannedTask(
        kind="collect", node="n1", epoch=1, state="assigned", standbys=tuple(standbys)
    )
    plan = Plan(epoch=1, tasks={"collect.0": task})
    place = Place(collect=CollectPlace(replicas=replicas))
    statuses = {
        node: NodeStatus(
            assignment_version=1, tasks={"f/collect.0": replace(SAID, state=state)} if state else {}
        )
        for node, state in said.items()
    }
    (found,) = rows(FlowView("f", Flow(revision=1), Version(0), place, plan=plan), statuses)
    return found


def test_standbys_are_shown_with_their_state() -> None:
    found = row(6, "n2", "n3", "n4", "n5", n2="standby", n3="failed", n4="")
    assert found.standbys == {
        "n2": "standby",
        "n3": "failed: no Java",
        "n4": "starting",
        "n5": "down",
    }
    assert found.shown_standbys == (
        "n2, n3 (failed: no Java), n4 (starting), n5 (down), 1 without a node"
    )


def test_standby_that_is_not_ready_is_a_problem_and_a_starting_one_is_none() -> None:
    (cause,) = health._of_standbys(row(4, "n2", "n3", "n4", n2="standby", n3="failed", n4=""))
    assert cause.what == "the standby of task f/collect.0 on n3 is not ready; failed: no Java"


def test_task_without_standbys_shows_none() -> None:
    assert (row(1).standbys, row(1).shown_standbys) == ({}, "")
