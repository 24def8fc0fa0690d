"""A node's event log: the machine's memory, and the copy that every shell can read."""

from __future__ import annotations

import random

import pytest

from flumeng.agent.node.event_publisher import LINES, TELL_SECONDS, EventPublisher
from flumeng.agent.node.events import Assigned, Ended, Reported, Step, Stop, Tick
from flumeng.agent.node.machine import Machine
from flumeng.control.zookeeper import ABSENT
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock
from tests.testkit.cluster import new_cluster
from tests.testkit.command_line import Shell
from tests.testkit.scripted_store import ScriptedStore, fail
from tests.testkit.store import FakeStore
from zkschema import codec, paths
from zkschema.records import INGEST, Assignment, Node, Story, StoryLine

NOON = 1_700_000_000.0


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    store.write(paths.node("n1"), Node(uuid="u", roles=("ingest",)), ABSENT)
    return store


@pytest.fixture
def event_publisher(store: FakeStore, clock: Clock) -> EventPublisher:
    return EventPublisher(store, "n1", clock, lambda: NOON)


def step(number: int, cause: str = "") -> Step:
    return Step(number, 100.0 + number, "ingest", "ready", "starting", "running", cause)


def told(store: FakeStore) -> tuple[StoryLine, ...]:
    found = store.read(paths.story("n1"))
    return found.value.lines if found else ()


def test_machine_remembers_changes_of_node_children_and_tasks(clock: Clock) -> None:
    machine = Machine((INGEST,), clock)
    machine.handle(Assigned(7, Assignment(), {}))
    machine.handle(Reported("ingest.0", {"type": "ready"}))
    for state, error in (
        ("running", None),
        ("running", None),
        ("running", "a journal stands still"),
        ("running", "a journal stands still"),
        ("running", None),
        ("failed", "no such host"),
    ):
        task = {"epoch": 1, "revision": 1, "state": state, "error": error}
        said = {"type": "status", "answers": 7, "tasks": {"web/ingest.n1": task}}
        machine.handle(Reported("ingest.0", said))
    clock.now += 5
    machine.handle(Ended("ingest.0", -9))
    machine.handle(Tick())
    machine.handle(Stop(0.0))
    assert [(s.who, s.event, s.before, s.after, s.cause) for s in machine.story] == [
        ("node", "start", "", "running", ""),
        ("node", "wanted", "", "assignment 7", "0 tasks"),
        ("ingest.0", "wanted", "absent", "starting", ""),
        ("ingest.0", "ready", "starting", "running", ""),
        ("web/ingest.n1", "status", "", "running", ""),
        ("web/ingest.n1", "status", "running", "running", "a journal stands still"),
        ("web/ingest.n1", "status", "running", "running", "recovered"),
        ("web/ingest.n1", "status", "running", "failed", "no such host"),
        ("ingest.0", "ended", "running", "waiting", "exit code -9"),
        ("node", "stop", "running", "stopping", ""),
        ("ingest.0", "stop", "waiting", "absent", ""),
    ]
    assert [s.number for s in machine.story] == list(range(11))
    assert [s.seconds for s in machine.story] == [100.0] * 8 + [105.0] * 3


def test_event_log_is_published_with_wall_clock_times_and_rarely(
    store: FakeStore, clock: Clock, event_publisher: EventPublisher
) -> None:
    event_publisher.tell([step(0)])
    assert told(store) == (
        StoryLine(time=NOON, who="ingest", event="ready", before="starting", after="running"),
    )
    event_publisher.tell([step(0), step(1)])
    assert len(told(store)) == 1
    clock.now += TELL_SECONDS
    event_publisher.tell([step(0), step(1)])
    assert [line.time for line in told(store)] == [NOON, NOON + 1]
    before = store.tree.znodes["/nodes/n1/story"].version
    clock.now += TELL_SECONDS
    event_publisher.tell([step(0), step(1)])
    assert store.tree.znodes["/nodes/n1/story"].version == before


def test_last_steps_are_published_at_once(
    store: FakeStore, event_publisher: EventPublisher
) -> None:
    event_publisher.tell([step(0)])
    event_publisher.tell([step(0), step(1)], at_once=True)
    assert len(told(store)) == 2


def test_lines_of_an_earlier_process_stay(
    store: FakeStore, clock: Clock, event_publisher: EventPublisher
) -> None:
    event_publisher.tell([step(0, "first life")])
    EventPublisher(store, "n1", clock, lambda: NOON + 60).tell([step(0, "second life")])
    assert [line.cause for line in told(store)] == ["first life", "second life"]


def test_line_whose_answer_was_lost_is_published_once(store: FakeStore, clock: Clock) -> None:
    mute = ScriptedStore(store.tree, after_commit=fail(UnavailableError("no answer")))
    event_publisher = EventPublisher(mute, "n1", clock, lambda: NOON)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            event_publisher.tell([step(0), step(1)])
        clock.now += TELL_SECONDS
    assert len(told(store)) == 2


def test_event_log_never_outgrows_its_znode(
    store: FakeStore, event_publisher: EventPublisher
) -> None:
    chance = random.Random(7)
    noise = ["".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(500)) for _ in range(80)]
    steps = [step(number, cause) for number, cause in enumerate(noise)]
    event_publisher.tell(steps)
    lines = told(store)
    assert 0 < len(lines) <= LINES
    assert lines[-1].time == NOON + 79
    assert len(codec.encode(Story(lines=lines))) <= paths.story.size_bytes


def test_event_log_of_a_dead_node_is_shown(
    store: FakeStore, event_publisher: EventPublisher
) -> None:
    shell = Shell(store.tree)
    event_publisher.tell([step(0, "exit code 1")])
    lines = shell.run("node", "story", "n1").stdout.splitlines()
    assert lines == [
        "node n1 is not live; this is its last saved event log",
        "TIME (UTC)\tWHO\tEVENT\tFROM\tTO\tCAUSE",
        "2023-11-14 22:13:20\tingest\tready\tstarting\trunning\texit code 1",
    ]
    as_json = shell.json("node", "story", "n1")
    assert (as_json["live"], as_json["lines"][0]["cause"]) == (False, "exit code 1")
    assert shell.run("node", "story", "n2").exit_code == 2
