"""Known complaints about other supervisors, which must not occur here.

Real masters and the collectors' real tasks on a store in memory; nodes are small, and do their
assignments. Pipelines follow a script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from threading import Event

import pytest

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.status import Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range, Reach
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.tasks import move_task, restart_task
from flumeng.control.master.daemon import Master
from flumeng.control.planner.task_outcomes import MOST
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import ABSENT, ANY, Store, Version, tree
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import add_node
from tests.testkit.collector import ScriptedEngine, ScriptedPipeline, StillPositions, register
from tests.testkit.scripted_store import ScriptedStore, fail_from
from tests.testkit.store import FakeStore
from tests.testkit.waiting import PATIENCE_SECONDS
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import PlannedTask

JOURNAL = "web.h.0.00000000"
TASK = "web/collect.0"
SIGN = ("ann", "", 0.0)
TEXT = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
place: {ingest: {labels: {role: in}}, collect: {tasks: 1, replicas: 2}}
batch: {seconds: 0, events: 100}
sinks: [noop]
"""


class Host:
    """A node with a collector. ``said``: its tasks' latest statuses; ``states``: all their
    states."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.store = FakeStore(world.store.tree)
        self.states: list[str] = []
        self.said: dict[str, Status] = {}
        self.built: list[ScriptedPipeline] = []
        self.runners: dict[str, Runner] = {}
        self.ending: list[Runner] = []
        self.live = True
        self._around = Surroundings(
            self.store,
            Publisher(self.store, gap_seconds=0.0),
            world.scheduler,
            world.jobs,
            self._build,
            lambda wake: Ends(world, wake),
            self._report,
        )
        add_node(self.store, name, ("collect",))

    def _build(self, assignment: Assignment) -> ScriptedPipeline:
        spec = parse_flow(assignment.spec)
        made = ScriptedPipeline(spec, self.world.on_write)
        self.built.append(made)
        return made

    def _report(self, key: str, status: Status) -> None:
        self.said[key] = status
        self.states.append(status.state)

    @property
    def batches(self) -> list[tuple[int, int]]:
        """Start and end of the written ranges."""
        return [(p.start, p.end) for made in self.built for batch in made.batches for p in batch]

    def obey(self) -> None:
        """Apply the assignment and report the states."""
        found = self.store.read(paths.assignment(self.name))
        if found is None or not self.live:
            return
        wanted = {f"{task.flow}/{task.task}": task for task in found.value.tasks}
        for key in self.runners.keys() - wanted.keys():
            runner = self.runners.pop(key)
            runner.stop()
            self.ending.append(runner)
            self.said.pop(key, None)
        for key, task in wanted.items():
            self._assign(key, task)
        tasks = {
            key: records.TaskStatus(
                epoch=status.epoch,
                revision=status.revision,
                state=status.state,
                error=status.error,
                epoch_seen=status.epoch_seen,
            )
            for key, status in self.said.items()
            if not (wanted[key].state == "draining" and status.state == "stopped")
        }
        status = records.NodeStatus(assignment_version=found.version.number, tasks=tasks)
        before = self.store.read(paths.status(self.name))
        if before is None or before.value != status:
            self.store.write(paths.status(self.name), status, ANY if before else ABSENT)

    def _assign(self, key: str, task: records.AssignedTask) -> None:
        text = self.store.read(paths.revision(task.flow, str(task.revision)))
        assert text is not None
        assignment = Assignment(
            task.flow,
            task.task,
            task.epoch,
            task.revision,
            text.value.text,
            task.partitions,
            draining=task.state == "draining",
            standby=task.state == "standby",
        )
        if key in self.runners:
            self.runners[key].assign(assignment)
            return
        self.runners[key] = Runner(assignment, self._around)
        self.said[key] = Status(task.epoch, task.revision, "starting")
        self.runners[key].start()

    def leave(self) -> None:
        """Its session ends; its tasks do not know it yet."""
        self.live = False
        self.store.remove(paths.live_node(self.name), ANY)

    def end(self) -> None:
        for runner in (*self.runners.values(), *self.ending):
            runner.cancel()
        for runner in (*self.runners.values(), *self.ending):
            assert runner.join(PATIENCE_SECONDS)


class Ends(StillPositions):
    """The end of the journal."""

    def __init__(self, world: World, wake: Callable[[], None]) -> None:
        self._world = world
        world.wakes.append(wake)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {name: Reach("", self._world.end) for name in partitions}


class World:
    """Two hosts, a master, and one journal with the end ``end``."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.scheduler = Scheduler()
        self.jobs = Jobs(ScriptedEngine(), 4, on_stuck=pytest.fail)
        self.wakes: list[Callable[[], None]] = []
        self.before_write: Callable[[Sequence[Range]], None] = lambda _ranges: None
        self.end = 0
        tree.init(self.store)
        self.hosts = {name: Host(self, name) for name in ("n1", "n2")}
        self.master = Master(FakeStore(self.store.tree), "m")
        apply_flow(Operator(self.store, *SIGN), TEXT)
        register(self.store, "web", JOURNAL)
        self.until(self.at_rest)

    def on_write(self, ranges: Sequence[Range]) -> None:
        self.before_write(ranges)

    def append(self, events: int) -> None:
        self.end += events
        for wake in self.wakes:
            wake()

    def until(self, holds: Callable[[], object]) -> None:
        """The master plans and the hosts obey until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, "waited in vain"
            self.turn()

    def turn(self) -> str:
        said = self.master.tick()
        for host in self.hosts.values():
            host.obey()
        time.sleep(0.005)
        return said

    def at_rest(self) -> bool:
        """The task runs, the other one stands by, all events are acked, and no work is left."""
        if self.owner_name is None:
            return False
        running = self.owner.said.get(TASK)
        ready = self.other.said.get(TASK)
        states = (running.state if running else "", ready.state if ready else "")
        return (
            states == ("running", "standby")
            and self.acked.offset == self.end
            and self.turn() == "nothing to do" == self.turn()
        )

    @property
    def task(self) -> PlannedTask | None:
        plan = read_plan(self.store, "web")
        return plan.value.tasks.get("collect.0") if plan else None

    @property
    def owner_name(self) -> str | None:
        task = self.task
        return task.node if task else None

    @property
    def owner(self) -> Host:
        return self.hosts[self.owner_name or ""]

    @property
    def other(self) -> Host:
        (name,) = self.hosts.keys() - {self.owner_name}
        return self.hosts[name]

    @property
    def acked(self) -> records.Ack:
        found = self.store.read(paths.ack("web", CURSOR_MAIN, JOURNAL))
        return found.value if found else records.Ack(epoch=0, offset=0)

    @property
    def written(self) -> list[tuple[int, int]]:
        return sorted(piece for host in self.hosts.values() for piece in host.batches)

    def ended(self) -> list[tuple[str, str, str]]:
        plan = read_plan(self.store, "web")
        return [(e.node, e.how, e.why) for e in plan.value.ended] if plan else []

    def versions(self) -> dict[str, Version | None]:
        """The versions of all znodes that masters write."""
        those = [paths.plan("web"), *map(paths.assignment, self.hosts)]
        found = [(str(path), self.store.read(path)) for path in those]
        return {path: each.version if each else None for path, each in found}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for host in world.hosts.values():
        host.end()


def covers(written: Sequence[tuple[int, int]], end: int) -> bool:
    """Whether each event up to ``end`` was written once."""
    begins = [0, *(piece_end for _, piece_end in written)]
    return begins[-1] == end and [start for start, _ in written] == begins[:-1]


def test_two_replicas_do_not_make_each_others_commits_fail(world: World) -> None:
    """Only one of them reads and publishes; so nothing can differ from the published offsets."""
    for _ in range(10):
        world.append(70)
        world.until(lambda: world.acked.offset == world.end)
    world.until(world.at_rest)
    assert covers(world.written, world.end)
    assert world.other.batches == []
    for host in world.hosts.values():
        assert not {"failed", "stopped"}.intersection(host.states)


@pytest.mark.slow
def test_replica_whose_time_is_over_is_superseded_and_has_not_failed(world: World) -> None:
    """The owner's node is cut off in the middle of a batch, which it finishes after the standby has
    taken over."""
    may_end, first = Event(), []

    def hold_the_first(ranges: Sequence[Range]) -> None:
        first.append(ranges)
        if len(first) == 1:
            assert may_end.wait(PATIENCE_SECONDS)

    world.before_write = hold_the_first
    old = world.owner
    world.append(60)
    world.until(lambda: first)
    old.leave()
    world.until(lambda: world.acked.offset == 60)
    assert world.owner is not old
    may_end.set()
    world.until(lambda: old.said[TASK].state == "stopped")
    assert "failed" not in old.states
    assert old.said[TASK].epoch_seen == world.acked.epoch
    assert world.ended() == [(old.name, "failed", f"node {old.name} is down")]


def test_task_that_read_everything_is_not_reported_failed(world: World) -> None:
    world.append(250)
    world.until(world.at_rest)
    found = world.store.read(paths.journal(JOURNAL))
    assert found is not None
    closed = replace(found.value, closed=True, end=250)
    world.store.write(paths.journal(JOURNAL), closed, ANY)
    world.until(lambda: world.task is not None and not world.task.partitions)
    world.owner.leave()
    world.until(world.ended)
    assert [how for _, how, _ in world.ended()] == ["stopped"]


@pytest.mark.slow
def test_task_goes_on_when_masters_are_killed_at_every_step_of_a_handover(world: World) -> None:
    """Nothing stays paused: the next master finds in the plan how far it is."""
    for transactions in range(8):
        other = world.other.name
        move_task(Operator(world.store, *SIGN), TASK, other)
        killed = fail_from(transactions + 1, UnavailableError("killed"))
        world.master = Master(ScriptedStore(world.store.tree, before_commit=killed), "m")
        for _ in range(12):
            world.append(10)
            world.turn()
        world.master = Master(FakeStore(world.store.tree), "m")
        world.until(lambda: world.owner_name == other)  # noqa: B023  it is called at once
        world.until(world.at_rest)
    assert covers(world.written, world.end)
    assert {how for _, how, _ in world.ended()} == {"stopped"}
    assert len(world.ended()) == 8


def test_batch_read_while_an_earlier_one_publishes_is_left_alone(world: World) -> None:
    """Its offsets are ahead of the acks, and rightly so."""
    may_end, seen = Event(), []

    def hold_the_first(ranges: Sequence[Range]) -> None:
        seen.append(ranges[0].start)
        if ranges[0].start == 0:
            assert may_end.wait(PATIENCE_SECONDS)

    world.before_write = hold_the_first
    before, built = world.versions(), len(world.owner.built)
    world.append(200)
    world.until(lambda: world.owner.batches == [(100, 200)])
    for _ in range(20):
        assert world.turn() == "nothing to do"
    assert world.acked.offset == 0
    may_end.set()
    world.until(lambda: world.acked.offset == 200)
    world.until(world.at_rest)
    assert (world.versions(), len(world.owner.built)) == (before, built)
    assert covers(world.written, 200)


def test_an_unchanged_spec_restarts_nothing(world: World) -> None:
    may_end = Event()

    def hold(_ranges: Sequence[Range]) -> None:
        assert may_end.wait(PATIENCE_SECONDS)

    world.before_write = hold
    before, epoch = world.versions(), world.acked.epoch
    world.append(50)
    for _ in range(3):
        assert not apply_flow(Operator(world.store, *SIGN), TEXT).changed
        world.turn()
    may_end.set()
    world.until(world.at_rest)
    assert world.store.children(paths.revisions("web")) == ["1"]
    assert (world.versions(), world.acked.epoch) == (before, epoch)
    assert [len(host.built) for host in world.hosts.values()] == [1, 1]
    assert covers(world.written, 50)


def test_changed_spec_takes_over_at_the_end_of_a_batch(world: World) -> None:
    may_end, seen = Event(), []

    def hold_the_first(ranges: Sequence[Range]) -> None:
        seen.append(ranges)
        if len(seen) == 1:
            assert may_end.wait(PATIENCE_SECONDS)

    world.before_write = hold_the_first
    owner = world.owner
    world.append(100)
    world.until(lambda: seen)
    epoch = world.acked.epoch
    assert apply_flow(Operator(world.store, *SIGN), TEXT.replace("100", "90")).changed
    for _ in range(20):
        world.append(5)
        world.turn()
    assert (world.acked.offset, len(owner.built)) == (0, 1)
    may_end.set()
    world.until(world.at_rest)
    assert (world.owner, world.acked.epoch) == (owner, epoch)
    first, second = owner.built
    assert len(first.batches) <= 2, "what had begun goes on, and nothing more"
    assert second.spec.batch.events == 90
    assert covers(world.written, world.end)


def test_restarted_masters_adopt_the_running_tasks(world: World) -> None:
    before = world.versions()
    for _ in range(5):
        world.master = Master(FakeStore(world.store.tree), "m")
        world.append(30)
        world.until(world.at_rest)
    assert world.versions() == before
    assert [len(host.built) for host in world.hosts.values()] == [1, 1]


@pytest.mark.slow
def test_stored_data_does_not_grow_with_every_change_of_owner(world: World) -> None:
    def kept(store: Store) -> set[str]:
        return {path for path in store.dump() if not path.startswith("/audit")}

    before = kept(world.store)
    for _ in range(MOST + 20):
        restart_task(Operator(world.store, *SIGN), TASK)
        world.master.tick()
    world.until(world.at_rest)
    assert kept(world.store) == before
    assert len(world.ended()) == MOST
    assert max(len(data) for data in world.store.dump().values()) < 50_000
