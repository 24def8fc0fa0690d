"""The node's machine: its messages to the children, and their starts and stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from flumeng.agent.node import children
from flumeng.agent.node.children import Child, statuses
from flumeng.agent.node.crash_suspects import WINDOW_SECONDS
from flumeng.agent.node.events import (
    Acked,
    Assigned,
    Delivered,
    Ended,
    Exit,
    Instruction,
    Kill,
    Past,
    Replicas,
    Reported,
    Start,
    Stop,
    Tell,
    Tick,
)
from flumeng.agent.node.machine import FaultError, Machine
from tests.testkit.clock import Clock
from zkschema.records import COLLECT, DISCOVER, GATEWAY, INGEST, AssignedTask, Assignment

WORKER = "ingest.0"


@pytest.fixture
def machine(clock: Clock) -> Iterator[Machine]:
    machine = Machine((INGEST, COLLECT), clock)
    yield machine
    machine.check()


def wanted(*kinds: str, version: int = 1, state: str = "running") -> Assigned:
    tasks = tuple(
        AssignedTask(flow="f", task=f"{kind}.0", kind=kind, epoch=1, revision=1, state=state)
        for kind in kinds
    )
    return Assigned(version, Assignment(tasks=tasks), {("f", 1): "text"})


def ready(child: str, address: str = "") -> Reported:
    return Reported(child, {"type": "ready", "address": address})


def status(
    child: str,
    state: str = "running",
    journals: Mapping[str, object] | None = None,
    *,
    answers: int = 1,
) -> Reported:
    task = {"epoch": 1, "revision": 1, "state": state, "error": None}
    tasks = {f"f/{child.partition('.')[0]}.0": task}
    message = {"type": "status", "answers": answers, "tasks": tasks}
    return Reported(child, {**message, "journals": journals} if journals else message)


def configured(instructions: list[Instruction]) -> list[str]:
    return [
        f"{told.child}: {[task['task'] for task in told.message['tasks']]}"
        for told in instructions
        if isinstance(told, Tell) and told.message["type"] == "configure"
    ]


def running(machine: Machine) -> None:
    """Both children run with a task each."""
    machine.handle(Tick())
    machine.handle(ready(WORKER, "h:1"))
    machine.handle(wanted(INGEST, COLLECT))
    machine.handle(ready(COLLECT))


def test_ingest_starts_at_once_and_is_configured_by_the_first_assignment(machine: Machine) -> None:
    """An empty configuration would close every journal."""
    assert machine.handle(Tick()) == [Start(WORKER)]
    assert machine.handle(ready(WORKER, "h:1")) == []
    assert machine.addresses == ("h:1",)
    assert configured(machine.handle(wanted(INGEST))) == ["ingest.0: ['ingest.0']"]


def test_status_has_the_spark_ui_of_the_collector_while_it_runs(machine: Machine) -> None:
    machine.handle(Tick())
    machine.handle(wanted(COLLECT))
    assert machine.status.spark_ui == ""
    machine.handle(Reported(COLLECT, {"type": "ready", "spark_ui": "http://127.0.0.1:4040"}))
    assert machine.status.spark_ui == "http://127.0.0.1:4040"
    machine.handle(Ended(COLLECT, 1))
    assert machine.status.spark_ui == ""


def test_a_collector_starts_with_its_first_task_and_stops_with_its_last(machine: Machine) -> None:
    machine.handle(Tick())
    machine.handle(ready(WORKER))
    assert Start(COLLECT) not in machine.handle(wanted(INGEST))
    assert Start(COLLECT) in machine.handle(wanted(INGEST, COLLECT))
    assert configured(machine.handle(ready(COLLECT))) == ["collect: ['collect.0']"]
    told = machine.handle(wanted(INGEST))
    assert Tell(COLLECT, {"type": "stop", "drain_seconds": 0.0}) in told
    assert machine.handle(Ended(COLLECT, 0)) == []


def test_dead_child_is_restarted_with_a_doubling_backoff(machine: Machine, clock: Clock) -> None:
    running(machine)
    for wait in (0.1, 0.2, 0.4):
        assert machine.handle(Ended(WORKER, -9)) == []
        clock.now += wait - 0.01
        assert machine.handle(Tick()) == []
        clock.now += 0.02
        assert machine.handle(Tick()) == [Start(WORKER)]
        assert configured(machine.handle(ready(WORKER, "h:2"))) == ["ingest.0: ['ingest.0']"]
    clock.now += 61
    machine.handle(Ended(WORKER, -9))
    clock.now += 0.11
    assert machine.handle(Tick()) == [Start(WORKER)], "a minute of health forgives"


def test_state_of_an_ended_child_is_reset(machine: Machine) -> None:
    running(machine)
    machine.handle(
        status(WORKER, journals={"f.n.0.a": {"flow": "f", "term": 1, "closed": False, "end": None}})
    )
    assert machine.status.tasks["f/ingest.0"].state == "running"
    assert list(machine.journals or ()) == ["f.n.0.a"]
    machine.handle(Ended(WORKER, -9))
    assert machine.status.tasks["f/ingest.0"].state == "starting"
    assert (machine.journals, machine.addresses) == (None, ("",))


def test_health_of_a_task_is_that_reported_by_its_child() -> None:
    ill = {"epoch": 1, "revision": 1, "state": "running", "health": "unhealthy"}
    found = statuses([Child(COLLECT, tasks={"f/collect.0": ill})], [])
    assert found["f/collect.0"].health == "unhealthy"


def test_released_task_leaves_the_status(machine: Machine) -> None:
    """Masters give a draining task away as soon as its owner does not list it."""
    running(machine)
    machine.handle(status(COLLECT))
    machine.handle(wanted(COLLECT, version=2, state="draining"))
    assert "f/collect.0" in machine.status.tasks
    machine.handle(status(COLLECT, "stopped", answers=2))
    assert "f/collect.0" not in machine.status.tasks


def test_assignment_is_applied_once_every_child_has_answered_it(machine: Machine) -> None:
    """Until then a child may run the configuration before."""
    running(machine)
    assert machine.status.assignment_version == -1
    machine.handle(status(WORKER))
    machine.handle(status(COLLECT))
    assert machine.status.assignment_version == 1
    machine.handle(wanted(INGEST, COLLECT, version=2))
    machine.handle(status(WORKER, answers=2))
    machine.handle(status(COLLECT, answers=1))
    assert machine.status.assignment_version == 1
    machine.handle(Ended(COLLECT, -9))
    assert machine.status.assignment_version == 2, "who is gone is at nothing"


def test_only_changed_acks_are_sent_but_all_of_them_to_a_new_worker(machine: Machine) -> None:
    running(machine)
    assert machine.handle(Acked({"f.n.0.j": 5}, ("f.n.0.k",))) == [
        Tell(WORKER, {"type": "acks", "acks": {"f.n.0.j": 5}}),
        Tell(WORKER, {"type": "remove", "journals": ["f.n.0.k"], "flows": []}),
    ]
    assert machine.handle(Acked({"f.n.0.j": 5})) == []
    assert machine.handle(Acked({"f.n.0.j": 5}, delivered={"f.n.0.j": 7})) == [
        Tell(WORKER, {"type": "delivered", "acks": {"f.n.0.j": 7}})
    ]
    assert machine.handle(Acked({"f.n.0.j": 5}, delivered={"f.n.0.j": 7})) == []
    machine.handle(Ended(WORKER, -9))
    assert machine.handle(Acked({"f.n.0.j": 6})) == []
    machine.handle(Stop(1.0))


def test_stopping_drains_the_collector_before_journals_go_away(machine: Machine) -> None:
    running(machine)
    told = machine.handle(Stop(3.0))
    assert told == [
        Tell(WORKER, {"type": "quiesce"}),
        Tell(COLLECT, {"type": "stop", "drain_seconds": 3.0}),
    ]
    assert machine.handle(Ended(COLLECT, 0)) == [
        Tell(WORKER, {"type": "stop", "drain_seconds": 0.0})
    ]
    assert machine.handle(Ended(WORKER, 0)) == [Exit()]


def test_a_child_that_does_not_stop_in_time_is_killed(machine: Machine, clock: Clock) -> None:
    running(machine)
    machine.handle(Stop(3.0))
    assert pass_time(machine, clock, 6.0) == []
    clock.now += 0.9
    assert machine.handle(Tick()) == []
    clock.now += 0.2
    assert machine.handle(Tick()) == [Kill(COLLECT, "did not stop in time")]


def test_pause_of_the_node_does_not_count_as_time_in_which_a_child_stops(
    machine: Machine, clock: Clock
) -> None:
    running(machine)
    machine.handle(Stop(3.0))
    clock.now += 60.0
    assert pass_time(machine, clock, 6.0) == [], "it was paused as well, or has not been read yet"
    assert pass_time(machine, clock, 2.0) == [Kill(COLLECT, "did not stop in time")]


def test_stop_is_handled_while_children_start_or_restart(machine: Machine) -> None:
    machine.handle(Tick())
    machine.handle(ready(WORKER))
    machine.handle(wanted(INGEST, COLLECT))
    machine.handle(Ended(WORKER, 1))
    assert machine.handle(Stop(3.0)) == [Kill(COLLECT, "the node stops")], "it reads no message yet"
    assert machine.handle(Ended(COLLECT, -9)) == [Exit()]


def test_stop_is_handled_while_the_collector_waits_for_its_restart(machine: Machine) -> None:
    running(machine)
    machine.handle(Ended(COLLECT, 1))
    assert machine.handle(Stop(1.0))[-1] == Tell(WORKER, {"type": "stop", "drain_seconds": 0.0})
    assert machine.handle(Ended(WORKER, 0)) == [Exit()]


def test_impossible_event_raises_with_the_event_log(machine: Machine) -> None:
    running(machine)
    with pytest.raises(
        FaultError, match=r"ingest.0 is running, got ready.*assignment 1 \(wanted: 2 tasks\)"
    ):
        machine.handle(ready(WORKER))


@pytest.fixture
def pair(clock: Clock) -> Iterator[Machine]:
    """A node with two running ingest workers and a collector."""
    machine = Machine((INGEST, COLLECT), clock, workers=2)
    assert machine.handle(Tick()) == [Start("ingest.0"), Start("ingest.1")]
    for number in range(2):
        machine.handle(ready(f"ingest.{number}", f"h:{number}"))
    yield machine
    machine.check()


def test_every_worker_gets_every_ingest_task_and_the_chokes(pair: Machine) -> None:
    given = wanted(INGEST)
    told = pair.handle(replace(given, assignment=replace(given.assignment, chokes={"f": 1e6})))
    assert configured(told) == ["ingest.0: ['ingest.0']", "ingest.1: ['ingest.0']"]
    assert [t.message["chokes"] for t in told if isinstance(t, Tell)] == [{"f": 1e6}] * 2
    assert pair.addresses == ("h:0", "h:1")


def test_state_of_a_task_is_the_worst_of_its_workers(pair: Machine) -> None:
    pair.handle(wanted(INGEST))
    pair.handle(status("ingest.0"))
    assert pair.status.tasks["f/ingest.0"].state == "starting", "the other has not said so"
    pair.handle(status("ingest.1"))
    assert pair.status.tasks["f/ingest.0"].state == "running"
    pair.handle(status("ingest.1", "failed"))
    assert pair.status.tasks["f/ingest.0"].state == "failed"
    pair.handle(Ended("ingest.1", -9))
    assert pair.status.tasks["f/ingest.0"].state == "starting"


def test_task_is_released_when_the_last_worker_released_it(pair: Machine) -> None:
    pair.handle(wanted(INGEST))
    for number in range(2):
        pair.handle(status(f"ingest.{number}"))
    pair.handle(wanted(INGEST, version=2, state="draining"))
    pair.handle(Reported("ingest.0", {"type": "status", "answers": 1, "tasks": {}, "journals": {}}))
    assert "f/ingest.0" in pair.status.tasks
    pair.handle(Reported("ingest.1", {"type": "status", "answers": 1, "tasks": {}, "journals": {}}))
    assert "f/ingest.0" not in pair.status.tasks


def test_each_worker_gets_the_acks_of_its_own_journals(pair: Machine) -> None:
    """Those of a worker that the node has no more are with the first."""
    names = [f"f.n.{number}.a" for number in range(3)]
    told = pair.handle(Acked(dict.fromkeys(names, 5), tuple(names)))
    assert told == [
        Tell("ingest.0", {"type": "acks", "acks": {names[0]: 5, names[2]: 5}}),
        Tell("ingest.0", {"type": "remove", "journals": [names[0], names[2]], "flows": []}),
        Tell("ingest.1", {"type": "acks", "acks": {names[1]: 5}}),
        Tell("ingest.1", {"type": "remove", "journals": [names[1]], "flows": []}),
    ]
    pair.handle(Ended("ingest.1", -9))


def test_worker_that_holds_a_replica_gets_its_acks_for_any_maker(pair: Machine) -> None:
    name = "f.m.1.a"
    pair.handle(Reported("ingest.0", {**status("ingest.0").message, "replicas": {name: "n/1"}}))
    told = pair.handle(Acked({name: 5}, (name,)))
    assert [one.child for one in told if isinstance(one, Tell)] == 2 * ["ingest.0"] + 2 * [
        "ingest.1"
    ]


def test_journals_of_an_absent_worker_are_unknown(pair: Machine) -> None:
    """Else its journals would count as gone."""
    journal = {"flow": "f", "term": 1, "closed": False, "end": None}
    assert pair.journals is None
    pair.handle(status("ingest.0", journals={"f.n.0.a": journal}))
    assert (list(pair.journals or ()), pair.knows_all_journals) == (["f.n.0.a"], False)
    pair.handle(status("ingest.1", journals={"f.n.1.a": journal}))
    assert (list(pair.journals or ()), pair.knows_all_journals) == (["f.n.0.a", "f.n.1.a"], True)
    pair.handle(Ended("ingest.0", -9))
    assert (list(pair.journals or ()), pair.knows_all_journals) == (["f.n.1.a"], False)


def test_all_workers_serve_until_the_collector_has_stopped(pair: Machine) -> None:
    pair.handle(wanted(INGEST, COLLECT))
    pair.handle(ready(COLLECT))
    told = pair.handle(Stop(3.0))
    assert told[:2] == [Tell(f"ingest.{number}", {"type": "quiesce"}) for number in range(2)]
    stop = {"type": "stop", "drain_seconds": 0.0}
    assert pair.handle(Ended(COLLECT, 0)) == [Tell(f"ingest.{n}", stop) for n in range(2)]
    assert pair.handle(Ended("ingest.1", 0)) == []
    assert pair.handle(Ended("ingest.0", 0)) == [Exit()]


def alive(child: str, held: str = "") -> Reported:
    return Reported(child, {"type": "alive", "held": held} if held else {"type": "alive"})


def pass_time(machine: Machine, clock: Clock, seconds: float, *said: Reported) -> list[Instruction]:
    """Act as the node's loop: a tick a second, and ``said`` once in each."""
    told = []
    for _ in range(round(seconds)):
        clock.now += 1.0
        for message in said:
            told += machine.handle(message)
        told += machine.handle(Tick())
    return told


def test_silent_child_is_killed_and_restarted(machine: Machine, clock: Clock) -> None:
    """Its status is hung until it is ready again, also that of its tasks."""
    running(machine)
    machine.handle(status(COLLECT))
    assert pass_time(machine, clock, 30.0, alive(WORKER), alive(COLLECT)) == []
    why = "hung: no message for 20 s"
    told = pass_time(machine, clock, 21.0, alive(WORKER))
    assert told == [Kill(COLLECT, why)]
    task = machine.status.tasks["f/collect.0"]
    assert (task.state, task.error) == ("starting", f"collect {why}")
    assert machine.children[COLLECT].hangs == 1
    assert [str(step) for step in machine.story][-1] == f"collect: running -> hung (tick: {why})"
    assert machine.handle(status(COLLECT)) == machine.handle(alive(COLLECT)) == [], "last words"
    machine.handle(Ended(COLLECT, -9))
    assert pass_time(machine, clock, 1.0, alive(WORKER)) == [Start(COLLECT)]
    assert configured(machine.handle(ready(COLLECT))) == ["collect: ['collect.0']"]
    machine.handle(status(COLLECT))
    assert machine.status.tasks["f/collect.0"].error is None
    assert pass_time(machine, clock, 15.0, alive(WORKER)) == []


def test_collector_that_hangs_when_its_suspects_change_is_only_killed(
    machine: Machine, clock: Clock
) -> None:
    running(machine)
    machine.handle(Ended(COLLECT, 1, frozenset({"f"})))
    assert pass_time(machine, clock, 1.0, alive(WORKER)) == [Start(COLLECT)]
    machine.handle(ready(COLLECT))
    assert machine.children[COLLECT].suspects == {"f"}
    assert pass_time(machine, clock, WINDOW_SECONDS - 21, alive(WORKER), alive(COLLECT)) == []
    assert pass_time(machine, clock, 21.0, alive(WORKER)) == [
        Kill(COLLECT, "hung: no message for 20 s")
    ]


def test_child_that_cannot_be_killed_is_killed_again_and_not_started_twice(
    machine: Machine, clock: Clock
) -> None:
    running(machine)
    kill = Kill(COLLECT, "hung: no message for 20 s")
    told = pass_time(machine, clock, 30.0, alive(WORKER))
    assert told[0] == kill
    assert 3 < told.count(kill) == len(told) <= 10
    assert machine.handle(Stop(1.0)) == [Tell(WORKER, {"type": "quiesce"})]
    assert machine.handle(Ended(COLLECT, -9)) == [
        Tell(WORKER, {"type": "stop", "drain_seconds": 0.0})
    ]
    assert machine.handle(Ended(WORKER, 0)) == [Exit()]


def test_a_child_that_does_not_become_ready_is_killed_unless_its_start_goes_on(
    machine: Machine, clock: Clock
) -> None:
    """An ingest worker opens its journals: as long as that goes on it says so."""
    machine.handle(Tick())
    assert pass_time(machine, clock, 200.0, alive(WORKER)) == []
    assert pass_time(machine, clock, 119.0) == []
    assert pass_time(machine, clock, 2.0) == [
        Kill(WORKER, "hung: not ready, and no message for 120 s")
    ]


def test_status_of_a_child_that_could_not_be_started_says_why(machine: Machine) -> None:
    """Its code would be that of a process that a signal has ended."""
    machine.handle(Tick())
    machine.handle(Ended(WORKER, -1, why="cannot be started: no memory"))
    assert machine.status.problems == {WORKER: "cannot be started: no memory"}
    assert machine.story[-1].cause == "cannot be started: no memory"


@pytest.mark.parametrize("pause", [5.0, 60.0, 100_000.0])
def test_pause_of_the_node_does_not_count_as_silence_of_its_children(
    machine: Machine, clock: Clock, pause: float
) -> None:
    """A node that was stopped, or waited for ZooKeeper, reads late the messages of its children."""
    running(machine)
    assert pass_time(machine, clock, 15.0, alive(WORKER)) == []
    clock.now += pause
    assert machine.handle(Tick()) == [], "it has not read what they have written"
    machine.handle(alive(COLLECT))
    assert pass_time(machine, clock, 15.0, alive(WORKER)) == []
    clock.now += pause
    machine.handle(Tick())
    assert pass_time(machine, clock, 21.0, alive(WORKER)) != [], "and one that hangs does so still"


def test_child_held_by_its_disk_is_given_more_time(machine: Machine, clock: Clock) -> None:
    running(machine)
    held = alive(WORKER, "disk: f.n.0.a")
    assert pass_time(machine, clock, 299.0, held, alive(COLLECT)) == []
    assert pass_time(machine, clock, 5.0, alive(WORKER), alive(COLLECT)) == []
    told = pass_time(machine, clock, 302.0, held, alive(COLLECT))
    assert told == [Kill(WORKER, "hung: it could not work for 300 s: disk: f.n.0.a")]
    causes = [step.cause for step in machine.story if step.event == "alive"]
    assert causes == ["held: disk: f.n.0.a", "resumed", "held: disk: f.n.0.a"]


def test_pause_of_the_node_does_not_count_as_time_in_which_a_child_is_held(
    machine: Machine, clock: Clock
) -> None:
    running(machine)
    held = alive(WORKER, "disk: f.n.0.a")
    assert pass_time(machine, clock, 100.0, held, alive(COLLECT)) == []
    clock.now += 1000.0
    assert pass_time(machine, clock, 190.0, held, alive(COLLECT)) == []
    told = pass_time(machine, clock, 12.0, held, alive(COLLECT))
    assert told == [Kill(WORKER, "hung: it could not work for 300 s: disk: f.n.0.a")]


def test_child_held_by_one_cause_after_another_goes_on(machine: Machine, clock: Clock) -> None:
    """A disk that is slow for hours, and never too slow for one journal, is no reason to kill."""
    running(machine)
    for turn in range(10):
        held = alive(WORKER, f"disk: journal f.n.0.{turn % 2}")
        assert pass_time(machine, clock, 60.0, held, alive(COLLECT)) == []
    assert machine.status.problems == {WORKER: "held: disk: journal f.n.0.1"}
    last = pass_time(machine, clock, 242.0, held, alive(COLLECT))
    assert last == [Kill(WORKER, "hung: it could not work for 300 s: disk: journal f.n.0.1")]


def test_child_that_hangs_repeatedly_is_restarted_with_growing_delays(
    machine: Machine, clock: Clock
) -> None:
    running(machine)
    for wait in (0.1, 0.2, 0.4):
        pass_time(machine, clock, 21.0, alive(WORKER))
        machine.handle(Ended(COLLECT, -9))
        clock.now += wait - 0.01
        assert machine.handle(Tick()) == []
        clock.now += 0.02
        assert machine.handle(Tick()) == [Start(COLLECT)]
        machine.handle(ready(COLLECT))
    assert machine.children[COLLECT].hangs == 3


def on_spark(version: int, **spark: str) -> Assigned:
    before = wanted("collect", version=version)
    return replace(before, assignment=replace(before.assignment, spark=spark))


def test_collector_that_is_not_needed_any_more_when_ready_is_stopped(machine: Machine) -> None:
    """A node begins with its stored assignment, and learns then that others took over."""
    machine.handle(Tick())
    assert Start(COLLECT) in machine.handle(wanted(COLLECT))
    machine.handle(wanted(version=2))
    assert machine.handle(ready(COLLECT)) == [Tell(COLLECT, {"type": "stop", "drain_seconds": 0.0})]


def test_a_collector_whose_settings_change_drains_and_is_started_with_them(
    machine: Machine,
) -> None:
    machine.handle(Tick())
    assert Start("collect") in machine.handle(on_spark(1, master="spark://a:1"))
    assert machine.children["collect"].spark == {"master": "spark://a:1"}
    machine.handle(ready("collect"))
    (told,) = machine.handle(on_spark(2, master="yarn"))
    assert isinstance(told, Tell)
    assert told.child == "collect"
    assert told.message["type"] == "stop"
    assert told.message["drain_seconds"] > 0
    assert machine.handle(Ended("collect", 0)) == [Start("collect")]
    assert machine.children["collect"].spark == {"master": "yarn"}


def test_collector_started_with_outdated_settings_is_ended(machine: Machine, clock: Clock) -> None:
    """It may wait for a master that is not there."""
    machine.handle(Tick())
    machine.handle(on_spark(1, master="spark://gone:1"))
    machine.handle(alive("collect", "spark://gone:1 does not answer"))
    assert machine.status.tasks["f/collect.0"].error == (
        "collect waits: spark://gone:1 does not answer"
    )
    assert Kill in [type(told) for told in machine.handle(on_spark(2))]
    machine.handle(Ended("collect", -9))
    clock.now += 1.0
    assert Start("collect") in machine.handle(Tick())
    assert machine.children["collect"].spark == {}


def test_discovery_has_a_process_of_its_own_while_it_has_tasks(machine: Machine) -> None:
    running(machine)
    assert Start(DISCOVER) not in machine.handle(Tick())
    assert Start(DISCOVER) in machine.handle(wanted(INGEST, COLLECT, DISCOVER, version=2))
    assert configured(machine.handle(ready(DISCOVER, "h:2"))) == ["discover: ['discover.0']"]
    machine.handle(status(DISCOVER, answers=2))
    assert machine.status.tasks["f/discover.0"].state == "running"
    assert (machine.discovery, machine.addresses) == ("h:2", ("h:1",))
    machine.handle(Ended(DISCOVER, -9))
    assert machine.discovery == ""
    assert machine.status.tasks["f/discover.0"].state == "starting"
    assert machine.children[COLLECT].starts == 1, "the collector notices nothing"
    machine.handle(wanted(INGEST, COLLECT, version=3))
    assert "f/discover.0" not in machine.status.tasks


def test_node_without_ingest_workers_keeps_discovery_to_answer_queries() -> None:
    machine = Machine((COLLECT,), Clock())
    assert machine.handle(Tick()) == [Start(DISCOVER)]
    machine.handle(ready(DISCOVER, "h:2"))
    assert machine.handle(wanted(version=1))
    assert machine.discovery == "h:2", "it is not stopped"
    assert machine.children[COLLECT].starts == 0


def test_address_of_the_collectors_counters_is_known_while_it_runs(
    machine: Machine, clock: Clock
) -> None:
    running(machine)
    assert machine.collector == ""
    machine.handle(Ended(COLLECT, -9))
    clock.now += 1.0
    machine.handle(Tick())
    machine.handle(ready(COLLECT, "h:3"))
    assert (machine.collector, machine.addresses) == ("h:3", ("h:1",))
    machine.handle(Ended(COLLECT, -9))
    assert machine.collector == ""


def test_worker_gets_each_awaited_ack_once(machine: Machine) -> None:
    running(machine)
    changes = machine.changes
    a, b = "f.n.0.a", "f.n.0.b"
    assert machine.handle(Reported(WORKER, {"type": "awaits", "journals": [a]})) == []
    assert machine.awaited == {a}
    assert machine.handle(Delivered({a: 5, b: 9})) == [
        Tell(WORKER, {"type": "delivered", "acks": {a: 5}})
    ]
    assert machine.handle(Delivered({a: 5})) == []
    machine.handle(Reported(WORKER, {"type": "awaits", "journals": [a, b]}))
    assert machine.handle(Delivered({a: 5, b: 9})) == [
        Tell(WORKER, {"type": "delivered", "acks": {b: 9}})
    ]
    assert machine.changes == changes, "nothing of it is to be reported"


def test_awaited_acks_of_a_worker_end_with_it(machine: Machine) -> None:
    running(machine)
    a = "f.n.0.a"
    machine.handle(Reported(WORKER, {"type": "awaits", "journals": [a]}))
    machine.handle(Delivered({a: 5}))
    machine.handle(Ended(WORKER, -9))
    assert machine.awaited == frozenset()
    assert machine.handle(Delivered({a: 6})) == []


def test_node_for_replicas_only_has_one_worker_for_them() -> None:
    assert children.names(("replica", "collect"), 3) == ["ingest.0", "collect", "discover"]
    assert children.names(("ingest", "replica"), 2) == ["ingest.0", "ingest.1"]


def replicas(number: int) -> Replicas:
    return Replicas({"type": "replicas", "journals": {"f.n.0.a": {"version": number}}})


def told_replicas(instructions: list[Instruction]) -> list[tuple[str, int]]:
    """Child and version of each message about replicas."""
    return [
        (one.child, one.message["journals"]["f.n.0.a"]["version"])
        for one in instructions
        if isinstance(one, Tell) and one.message["type"] == "replicas"
    ]


def test_workers_get_the_replica_holders_once(pair: Machine, clock: Clock) -> None:
    changes = pair.changes
    assert told_replicas(pair.handle(replicas(1))) == [("ingest.0", 1), ("ingest.1", 1)]
    assert pair.handle(replicas(1)) == []
    assert told_replicas(pair.handle(replicas(2))) == [("ingest.0", 2), ("ingest.1", 2)]
    assert pair.changes == changes, "nothing of it is to be reported"
    pair.handle(Ended("ingest.1", -9))
    assert told_replicas(pair.handle(replicas(3))) == [("ingest.0", 3)]
    clock.now += 1.0
    assert pair.handle(Tick()) == [Start("ingest.1")]
    assert told_replicas(pair.handle(replicas(4))) == [("ingest.0", 4)], "it reads nothing yet"
    assert told_replicas(pair.handle(ready("ingest.1"))) == [("ingest.1", 4)]
    pair.handle(Ended("ingest.1", -9))
    clock.now += 1.0
    pair.handle(Tick())
    assert told_replicas(pair.handle(ready("ingest.1"))) == [("ingest.1", 4)], "it is another one"


def test_a_journal_that_waits_for_its_key_is_a_problem_of_the_node(machine: Machine) -> None:
    running(machine)
    journal = {"flow": "f", "term": 1, "closed": True, "end": 9}
    said = {"type": "status", "answers": 1, "tasks": {}}
    machine.handle(
        Reported(WORKER, {**said, "journals": {"f.n.0.a": {**journal, "locked": "why"}}})
    )
    assert machine.status.problems == {"journal f.n.0.a": "why"}
    machine.handle(Reported(WORKER, {**said, "journals": {"f.n.0.a": journal}}))
    assert machine.status.problems == {}


def test_worker_is_configured_before_it_gets_the_replica_holders(machine: Machine) -> None:
    """It closes the journals of flows that it has no task of."""
    machine.handle(Tick())
    machine.handle(wanted(INGEST))
    machine.handle(replicas(1))
    told = machine.handle(ready(WORKER))
    kinds = [one.message["type"] for one in told if isinstance(one, Tell)]
    assert kinds == ["configure", "replicas"]


def test_stopping_worker_still_gets_the_replica_holders(machine: Machine) -> None:
    """Its events may wait for a replica that has left."""
    running(machine)
    machine.handle(Stop(3.0))
    machine.handle(Ended(COLLECT, 0))
    assert told_replicas(machine.handle(replicas(1))) == [(WORKER, 1)]
    machine.handle(Ended(WORKER, 0))


def test_last_proposal_for_each_journal_is_kept_until_it_is_taken(machine: Machine) -> None:
    def proposal(journal: str, version: int) -> Reported:
        return Reported(WORKER, {"type": "proposal", "journal": journal, "version": version})

    running(machine)
    changes = machine.changes
    for journal, version in (("a", 1), ("b", 1), ("a", 2)):
        assert machine.handle(proposal(journal, version)) == []
    machine.handle(Tick())
    machine.handle(Ended(WORKER, -9))
    assert {name: said["version"] for name, said in machine.proposals.items()} == {"a": 2, "b": 1}
    assert machine.changes == changes + 1, "only its end is to be reported"


def test_replicas_of_this_node_are_known_while_their_worker_runs(pair: Machine) -> None:
    said = status("ingest.0").message
    pair.handle(Reported("ingest.0", {**said, "replicas": {"f.m.0.a": "n/1"}}))
    pair.handle(status("ingest.1"))
    assert pair.replicas == {"f.m.0.a": "n/1"}
    pair.handle(Ended("ingest.0", -9))
    assert pair.replicas == {}


def test_worker_gets_the_read_positions_of_its_journals_before_its_tasks(clock: Clock) -> None:
    """Without them it would take events into a journal that ends below its readers."""
    pair = Machine((INGEST,), clock, workers=2)
    pair.handle(Past({"f.n1.0.a": 7, "f.n1.1.b": None}, restored=True))
    pair.handle(Tick())
    pair.handle(wanted(INGEST))
    told = [i.message for i in pair.handle(ready("ingest.1", "h:1")) if isinstance(i, Tell)]
    assert told[0] == {"type": "past", "seen": {"f.n1.1.b": None}, "restored": True}
    assert told[1]["type"] == "configure"
    (again,) = pair.handle(Past({"f.n1.0.a": 7, "f.n1.1.b": 9}))
    assert again == Tell("ingest.1", {"type": "past", "seen": {"f.n1.1.b": 9}, "restored": False})


def test_journals_that_refuse_events_are_logged_and_older_ones_are_problems(
    machine: Machine,
) -> None:
    running(machine)
    assert not machine.has_settled_past
    refused = {
        "f.n1.0.a": {"why": "readers have seen more", "older": True, "settled": False},
        "f.n1.0.b": {"why": "not known", "older": False, "settled": True},
    }
    said = status(WORKER)
    for _ in range(2):
        machine.handle(Reported(WORKER, {**said.message, "refused": refused}))
    told = [str(step) for step in machine.story if "takes no more" in str(step)]
    assert told == [
        "journal f.n1.0.a: - -> takes no more events (status: readers have seen more)",
        "journal f.n1.0.b: - -> takes no more events (status: not known)",
    ]
    assert machine.status.problems == {"journal f.n1.0.a": "readers have seen more"}
    assert not machine.has_settled_past
    machine.handle(said)
    assert machine.status.problems == {}
    assert machine.has_settled_past


def test_gateway_runs_from_the_start_and_without_tasks(clock: Clock) -> None:
    machine = Machine((GATEWAY,), clock)
    assert machine.handle(Tick()) == [Start(GATEWAY)]
    machine.handle(ready(GATEWAY, "g:1"))
    assert machine.gateway == "g:1"
    (told,) = machine.handle(wanted())
    assert isinstance(told, Tell)
    assert (told.child, told.message["tasks"]) == (GATEWAY, [])
    machine.handle(Reported(GATEWAY, {"type": "status", "answers": 1, "tasks": {}}))
    assert machine.status.assignment_version == 1
    machine.handle(Ended(GATEWAY, -9))
    assert machine.gateway == ""
    clock.now += 1
    assert machine.handle(Tick()) == [Start(GATEWAY)]
