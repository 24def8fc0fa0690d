"""The node's machine: what it tells its children, and when it starts and stops them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flumeng.node.machine import (
    Acked,
    Ended,
    Exit,
    FaultError,
    Instruction,
    Kill,
    Machine,
    Said,
    Start,
    Stop,
    Tell,
    Tick,
    Wanted,
)
from zkschema.records import COLLECT, INGEST, AssignedTask, Assignment


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine(clock: Clock) -> Iterator[Machine]:
    machine = Machine((INGEST, COLLECT), clock)
    yield machine
    machine.check()


def wanted(*kinds: str, version: int = 1, state: str = "running") -> Wanted:
    tasks = tuple(
        AssignedTask(flow="f", task=f"{kind}.0", kind=kind, epoch=1, revision=1, state=state)
        for kind in kinds
    )
    return Wanted(version, Assignment(tasks=tasks), {("f", 1): "text"})


def ready(child: str, address: str = "") -> Said:
    return Said(child, {"type": "ready", "address": address})


def status(child: str, state: str = "running", **journals: object) -> Said:
    task = {"epoch": 1, "revision": 1, "state": state, "error": None}
    message = {"type": "status", "tasks": {f"f/{child}.0": task}}
    return Said(child, {**message, "journals": journals} if journals else message)


def configured(instructions: list[Instruction]) -> list[str]:
    return [
        f"{told.child}: {[task['task'] for task in told.message['tasks']]}"
        for told in instructions
        if isinstance(told, Tell) and told.message["type"] == "configure"
    ]


def running(machine: Machine) -> None:
    """Both children up with a task each."""
    machine.handle(Tick())
    machine.handle(ready(INGEST, "h:1"))
    machine.handle(wanted(INGEST, COLLECT))
    machine.handle(ready(COLLECT))


def test_ingest_starts_at_once_and_is_told_nothing_before_there_is_an_assignment(
    machine: Machine,
) -> None:
    """An empty configuration would close every journal."""
    assert machine.handle(Tick()) == [Start(INGEST)]
    assert machine.handle(ready(INGEST, "h:1")) == []
    assert machine.address == "h:1"
    assert configured(machine.handle(wanted(INGEST))) == ["ingest: ['ingest.0']"]


def test_a_collector_starts_with_its_first_task_and_stops_with_its_last(machine: Machine) -> None:
    machine.handle(Tick())
    machine.handle(ready(INGEST))
    assert Start(COLLECT) not in machine.handle(wanted(INGEST))
    assert Start(COLLECT) in machine.handle(wanted(INGEST, COLLECT))
    assert configured(machine.handle(ready(COLLECT))) == ["collect: ['collect.0']"]
    told = machine.handle(wanted(INGEST))
    assert Tell(COLLECT, {"type": "stop", "drain_seconds": 0.0}) in told
    assert machine.handle(Ended(COLLECT, 0)) == []


def test_a_child_that_dies_comes_back_after_a_backoff_that_doubles(
    machine: Machine, clock: Clock
) -> None:
    running(machine)
    for wait in (0.1, 0.2, 0.4):
        assert machine.handle(Ended(INGEST, -9)) == []
        clock.now += wait - 0.01
        assert machine.handle(Tick()) == []
        clock.now += 0.02
        assert machine.handle(Tick()) == [Start(INGEST)]
        assert configured(machine.handle(ready(INGEST, "h:2"))) == ["ingest: ['ingest.0']"]
    clock.now += 61
    machine.handle(Ended(INGEST, -9))
    clock.now += 0.11
    assert machine.handle(Tick()) == [Start(INGEST)], "a minute of health forgives"


def test_nothing_is_said_for_a_child_that_is_gone(machine: Machine) -> None:
    running(machine)
    machine.handle(status(INGEST, j1={"flow": "f", "term": 1, "closed": False, "end": None}))
    assert machine.status.tasks["f/ingest.0"].state == "running"
    assert list(machine.journals or ()) == ["j1"]
    machine.handle(Ended(INGEST, -9))
    assert machine.status.tasks["f/ingest.0"].state == "starting"
    assert (machine.journals, machine.address) == (None, "")


def test_a_task_that_was_let_go_leaves_the_status(machine: Machine) -> None:
    """Masters give a draining task away as soon as its owner does not list it."""
    running(machine)
    machine.handle(status(COLLECT))
    machine.handle(wanted(COLLECT, version=2, state="draining"))
    assert machine.status.assignment_version == 2
    assert "f/collect.0" in machine.status.tasks
    machine.handle(status(COLLECT, "stopped"))
    assert "f/collect.0" not in machine.status.tasks


def test_only_news_of_acks_is_passed_on_and_all_of_it_to_a_new_worker(machine: Machine) -> None:
    running(machine)
    assert machine.handle(Acked({"j": 5}, ("k",))) == [
        Tell(INGEST, {"type": "acks", "acks": {"j": 5}}),
        Tell(INGEST, {"type": "remove", "journals": ["k"], "flows": []}),
    ]
    assert machine.handle(Acked({"j": 5})) == []
    machine.handle(Ended(INGEST, -9))
    assert machine.handle(Acked({"j": 6})) == []
    machine.handle(Stop(1.0))


def test_stopping_drains_the_collector_before_journals_go_away(machine: Machine) -> None:
    running(machine)
    told = machine.handle(Stop(3.0))
    assert told == [
        Tell(INGEST, {"type": "quiesce"}),
        Tell(COLLECT, {"type": "stop", "drain_seconds": 3.0}),
    ]
    assert machine.handle(Ended(COLLECT, 0)) == [
        Tell(INGEST, {"type": "stop", "drain_seconds": 0.0})
    ]
    assert machine.handle(Ended(INGEST, 0)) == [Exit()]


def test_a_child_that_does_not_stop_in_time_is_killed(machine: Machine, clock: Clock) -> None:
    running(machine)
    machine.handle(Stop(3.0))
    clock.now += 6.9
    assert machine.handle(Tick()) == []
    clock.now += 0.2
    assert machine.handle(Tick()) == [Kill(COLLECT)]


def test_stop_while_children_start_or_wait(machine: Machine) -> None:
    machine.handle(Tick())
    machine.handle(ready(INGEST))
    machine.handle(wanted(INGEST, COLLECT))
    machine.handle(Ended(INGEST, 1))
    assert machine.handle(Stop(3.0)) == [Tell(COLLECT, {"type": "stop", "drain_seconds": 0.0})]
    assert machine.handle(Ended(COLLECT, 0)) == [Exit()]


def test_an_impossible_event_tells_the_story(machine: Machine) -> None:
    running(machine)
    with pytest.raises(
        FaultError, match=r"ingest is running, got ready.*assignment 1 \(wanted: 2 tasks\)"
    ):
        machine.handle(ready(INGEST))
