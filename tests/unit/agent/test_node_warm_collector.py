"""A node with a warm collector: Spark runs there before the first collect task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flumeng.agent.node.children import State
from flumeng.agent.node.events import (
    Assigned,
    Ended,
    Exit,
    Instruction,
    Kill,
    Reported,
    Start,
    Stop,
    Tell,
    Tick,
)
from flumeng.agent.node.machine import (
    BACKOFF_MOST_SECONDS,
    HEALTHY_SECONDS,
    WARM_AFTER_SECONDS,
    WARM_BACKOFF_MOST_SECONDS,
    Machine,
)
from tests.testkit.clock import Clock
from zkschema.records import COLLECT, INGEST, REPLICA, AssignedTask, Assignment

WORKER = "ingest.0"
READY = Reported(COLLECT, {"type": "ready", "address": "h:2"})
NOTHING: dict[str, str] = {}


@pytest.fixture
def machine(clock: Clock) -> Iterator[Machine]:
    """An ingest worker runs, and the node has no task yet."""
    machine = Machine((INGEST, COLLECT), clock, warm=True)
    machine.handle(Tick())
    machine.handle(Reported(WORKER, {"type": "ready", "address": "h:1"}))
    yield machine
    machine.check()


def assigned(*kinds: str, version: int = 1, spark: dict[str, str] = NOTHING) -> Assigned:
    tasks = tuple(
        AssignedTask(flow="f", task=f"{kind}.0", kind=kind, epoch=1, revision=1, state="running")
        for kind in kinds
    )
    return Assigned(version, Assignment(tasks=tasks, spark=spark), {("f", 1): "text"})


def later(machine: Machine, clock: Clock, seconds: float) -> list[Instruction]:
    """Let time pass as ticks do; return the instructions. Running children report progress."""
    instructions: list[Instruction] = []
    until = clock.now + seconds
    while clock.now < until:
        clock.now += 0.5
        for child in machine.children.values():
            if child.state in (State.STARTING, State.RUNNING):
                instructions += machine.handle(Reported(child.name, {"type": "alive"}))
        instructions += machine.handle(Tick())
    return instructions


def configured(instructions: list[Instruction]) -> list[list[str]]:
    messages = [i.message for i in instructions if isinstance(i, Tell) and i.child == COLLECT]
    return [[t["task"] for t in m["tasks"]] for m in messages if m["type"] == "configure"]


def warmed(machine: Machine, clock: Clock) -> None:
    machine.handle(assigned())
    later(machine, clock, WARM_AFTER_SECONDS)
    machine.handle(READY)
    machine.handle(Reported(COLLECT, {"type": "status", "answers": 1, "tasks": {}}))


def test_collector_starts_without_tasks_some_seconds_after_the_node(
    machine: Machine, clock: Clock
) -> None:
    assert Start(COLLECT) not in machine.handle(assigned())
    assert later(machine, clock, WARM_AFTER_SECONDS - 0.5) == []
    assert later(machine, clock, 0.5) == [Start(COLLECT)]


def test_collector_waits_for_the_spark_settings_of_the_assignment(
    machine: Machine, clock: Clock
) -> None:
    assert later(machine, clock, 60.0) == []
    settings = {"cores": "1"}
    assert Start(COLLECT) in machine.handle(assigned(spark=settings))
    assert machine.children[COLLECT].spark == settings


def test_a_task_is_given_to_the_warm_collector_without_a_start(
    machine: Machine, clock: Clock
) -> None:
    warmed(machine, clock)
    instructions = machine.handle(assigned(COLLECT, version=2))
    assert configured(instructions) == [["collect.0"]]
    assert machine.children[COLLECT].starts == 1


def test_collector_stays_when_its_last_task_has_gone(machine: Machine, clock: Clock) -> None:
    machine.handle(assigned(COLLECT))
    machine.handle(READY)
    assert configured(machine.handle(assigned(version=2))) == [[]]
    assert later(machine, clock, 2 * WARM_AFTER_SECONDS) == []
    assert machine.children[COLLECT].state is State.RUNNING


def test_warm_collector_reports_no_task_and_its_node_is_ready(
    machine: Machine, clock: Clock
) -> None:
    warmed(machine, clock)
    machine.handle(Reported(WORKER, {"type": "status", "answers": 1, "tasks": {}}))
    assert machine.status.tasks == {}
    assert machine.status.assignment_version == 1
    assert machine.status.problems == {}
    assert machine.not_running == ()


def test_end_of_a_collector_without_tasks_is_no_problem_of_the_node(
    machine: Machine, clock: Clock
) -> None:
    """Java may be missing where nothing is collected."""
    machine.handle(assigned())
    later(machine, clock, WARM_AFTER_SECONDS)
    machine.handle(Reported(COLLECT, {"type": "alive", "held": "waits"}))
    assert machine.status.problems == {}
    machine.handle(Ended(COLLECT, 2))
    assert machine.status.problems == {}
    assert not machine.not_running
    assert "ended with code 2" in machine.children[COLLECT].trouble
    machine.handle(assigned(COLLECT, version=2))
    assert machine.status.problems == {COLLECT: "ended with code 2"}
    assert list(machine.not_running) == [COLLECT]


def end_often(machine: Machine, clock: Clock, seconds: float) -> list[float]:
    """Let each start fail; return the times of the starts."""
    starts = []
    until = clock.now + seconds
    while clock.now < until:
        if Start(COLLECT) in later(machine, clock, 0.5):
            starts.append(clock.now)
            machine.handle(Ended(COLLECT, 2))
    return starts


def test_back_off_without_tasks_grows_to_minutes_and_a_task_cuts_it_short(
    machine: Machine, clock: Clock
) -> None:
    machine.handle(assigned())
    starts = end_often(machine, clock, 3600.0)
    assert starts[-1] - starts[-2] >= WARM_BACKOFF_MOST_SECONDS
    assert len(starts) < 20
    machine.handle(assigned(COLLECT, version=2))
    assert Start(COLLECT) in later(machine, clock, BACKOFF_MOST_SECONDS)
    machine.handle(Ended(COLLECT, 2))
    starts = end_often(machine, clock, 60.0)
    assert len(starts) >= 60.0 / BACKOFF_MOST_SECONDS - 1


def test_crash_after_a_minute_of_running_is_repaired_at_once(
    machine: Machine, clock: Clock
) -> None:
    warmed(machine, clock)
    later(machine, clock, HEALTHY_SECONDS + 1)
    machine.handle(Ended(COLLECT, 1))
    assert later(machine, clock, 0.5) == [Start(COLLECT)]


def test_silent_warm_collector_is_killed(machine: Machine, clock: Clock) -> None:
    warmed(machine, clock)
    instructions: list[Instruction] = []
    for _ in range(60):
        clock.now += 0.5
        machine.handle(Reported(WORKER, {"type": "alive"}))
        instructions += machine.handle(Tick())
    assert Kill in {type(i) for i in instructions}


def test_other_spark_settings_restart_the_warm_collector(machine: Machine, clock: Clock) -> None:
    warmed(machine, clock)
    (told,) = [
        i
        for i in machine.handle(assigned(version=2, spark={"cores": "1"}))
        if isinstance(i, Tell) and i.child == COLLECT
    ]
    assert told.message["type"] == "stop"
    assert machine.handle(Ended(COLLECT, 0)) == [Start(COLLECT)]
    assert machine.children[COLLECT].spark == {"cores": "1"}


def test_no_warm_collector_takes_the_cores_of_a_cluster(machine: Machine, clock: Clock) -> None:
    warmed(machine, clock)
    machine.handle(assigned(version=2, spark={"master": "spark://a:7077"}))
    machine.handle(Ended(COLLECT, 0))
    assert later(machine, clock, 60.0) == []
    assert machine.children[COLLECT].state is State.ABSENT
    assert Start(COLLECT) in machine.handle(assigned(version=3, spark={"master": "local[2]"}))


def test_node_that_stops_ends_a_warm_and_a_starting_collector(clock: Clock) -> None:
    machine = Machine((COLLECT,), clock, warm=True)
    machine.handle(Tick())
    machine.handle(assigned())
    later(machine, clock, WARM_AFTER_SECONDS)
    assert Kill(COLLECT, "the node stops") in machine.handle(Stop(30.0))
    machine.handle(Ended("discover", 0))
    assert machine.handle(Ended(COLLECT, -9)) == [Exit()]


@pytest.mark.parametrize("roles", [(INGEST,), (REPLICA,), (INGEST, REPLICA)])
def test_node_that_does_not_collect_has_none(roles: tuple[str, ...], clock: Clock) -> None:
    machine = Machine(roles, clock, warm=True)
    machine.handle(Tick())
    machine.handle(assigned())
    later(machine, clock, 60.0)
    assert COLLECT not in machine.children


def test_node_that_does_not_want_one_starts_and_ends_it_with_its_tasks(clock: Clock) -> None:
    machine = Machine((INGEST, COLLECT), clock)
    machine.handle(Tick())
    machine.handle(assigned())
    assert later(machine, clock, 60.0) == []
    assert Start(COLLECT) in machine.handle(assigned(COLLECT, version=2))
    machine.handle(READY)
    assert Tell(COLLECT, {"type": "stop", "drain_seconds": 0.0}) in machine.handle(
        assigned(version=3)
    )
