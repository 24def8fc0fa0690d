"""The subscriber: discovery and collectors with the code of the real ones, two of each. A plan
gives each task to one of them under an epoch; one that lost its task does not know yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.gaps import Gap
from flumeng.agent.collector.partitions import Partitions
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import MOST, next_ranges
from flumeng.agent.discovery.task import DiscoveryTask, SupersededError
from flumeng.config import FlowSpec
from flumeng.config.component import RemoteFlow
from flumeng.connectors.api.finding import Before, Finder, Findings
from flumeng.connectors.api.ranged import Range, Reach, Standstill, UnreadableError
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.input import SiteWatcher
from flumeng.connectors.sites.names import journal_of
from flumeng.control.snapshot import discovered
from flumeng.control.zookeeper import ABSENT, ANY, Put, Versioned
from flumeng.journal.log.errors import DataLossError
from flumeng.platform.errors import ConflictError, FlumengError, UnavailableError
from tests.testkit.simulation.environment import Process
from tests.testkit.simulation.lanes import AtOnce
from tests.testkit.simulation.relay.link import LinkedGateways
from tests.testkit.simulation.relay.source import FLOW
from zkschema import paths
from zkschema.records import COLLECT, DISCOVER, Commit, Plan, PlannedTask

if TYPE_CHECKING:
    from tests.testkit.simulation.relay.world import World

READER = "copy"
DISCOVER_SECONDS = 3.0
RETRY_SECONDS = 0.7
POLL_SECONDS = 0.8
BATCH_SECONDS = 1.5
PLAN_SECONDS = 1.5
MOST_IN_BATCH = 12


class Plans(Process):
    """As a master: tasks get new partitions; ``give`` moves a task to the other process."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "m2")
        self._world = world
        self.session = world.connect_to(world.nyc, self.name)
        self.owners = {COLLECT: (0, 1), DISCOVER: (0, 1)}
        """The number of the process, and the epoch."""

    def give(self, kind: str) -> str:
        number, epoch = self.owners[kind]
        self.owners[kind] = 1 - number, epoch + 1
        self.due = self._world.now
        return f"gives the task {kind} to process {1 - number} under epoch {epoch + 1}"

    def step(self) -> None:
        self.due = self._world.now + PLAN_SECONDS
        assert self.session is not None
        try:
            (record,) = discovered.read(self.session, [READER])
            found = isinstance(record, Versioned)
            names = sorted(cast(Any, record).value.partitions) if found else []
            before = self.session.read(paths.plan(READER))
            plan = Plan(
                epoch=max(epoch for _, epoch in self.owners.values()),
                tasks={
                    kind: PlannedTask(
                        kind=kind,
                        node=str(number),
                        epoch=epoch,
                        state="assigned",
                        partitions=tuple(names) if kind == COLLECT else (),
                    )
                    for kind, (number, epoch) in self.owners.items()
                },
            )
            if before is None or before.value != plan:
                expect = before.version if before else ABSENT
                self.session.write(paths.plan(READER), plan, expect)
        except FlumengError as error:
            self.say(f"plans later: {error}")


class Worker(Process):
    """A process with number ``number`` that looks into the plan for its task."""

    kind: str

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name)
        self.world = world
        self.number = number
        self.session = world.connect_to(world.nyc, name)
        self.gateways = LinkedGateways(world.link, "nyc")

    def fresh(self) -> Worker:
        """Return the process as it starts again."""
        return type(self)(self.world, self.name, self.number)

    def planned(self) -> PlannedTask | None:
        """Return the task, if it is this process's in the plan that it reads."""
        assert self.session is not None
        plan = self.session.read(paths.plan(READER))
        task = plan.value.tasks.get(self.kind) if plan else None
        return task if task and task.node == str(self.number) else None


class NotingFinder:
    """A finder whose notes, such as that a lease had ended, are kept."""

    def __init__(self, finder: Finder, world: World) -> None:
        self._finder = finder
        self._world = world

    def find(self, before: Before) -> Findings:
        found = self._finder.find(before)
        self._world.checks.notes += len(found.notes)
        return found


class Discovery(Worker):
    kind = DISCOVER

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self._task: DiscoveryTask | None = None
        self._epoch = 0

    def step(self) -> None:
        self.due = self.world.now + DISCOVER_SECONDS
        try:
            self._look()
        except SupersededError as error:
            self.say(f"stops discovery: {error}")
            self._task = None
        except FlumengError as error:
            self.say(f"looks again: {error}")
            self.due = self.world.now + RETRY_SECONDS

    def _look(self) -> None:
        planned = self.planned()
        if planned is None:
            self._task = None
            return
        if self._task is None or self._epoch != planned.epoch:
            self._epoch = planned.epoch
            self._task = self._made(planned.epoch)
        self._task.discover()

    def _made(self, epoch: int) -> DiscoveryTask:
        assert self.session is not None
        finder = self.world.parts.finder(
            RemoteFlow("fra", FLOW, self.world.keep_seconds), self.session, READER
        )
        finder._gateways = cast(Gateways, self.gateways)
        noting = cast(Finder, NotingFinder(finder, self.world))
        return DiscoveryTask(self.session, READER, epoch, [noting], clock=self.world.clock)


class LinkPositions:
    """The ends of partitions as of the last question."""

    def __init__(self, gateways: LinkedGateways, world: World) -> None:
        remote = RemoteFlow("fra", FLOW, world.keep_seconds)
        self._watcher = SiteWatcher(cast(Gateways, gateways), remote, reports_gaps=True)
        self._gateways = gateways
        self._threads = AtOnce()
        self._reaches: dict[str, Reach] = {}

    def ask(self, partitions: Collection[str]) -> None:
        try:
            self._reaches = self._watcher.ask(frozenset(partitions))
        except UnavailableError:
            self._reaches = {}

    def open(self, spec: FlowSpec) -> None:
        """Every flow is read alike."""

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {name: self._reaches[name] for name in partitions if name in self._reaches}

    def refresh(self, partitions: Collection[str]) -> None:
        """Each question is a new one."""

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        del address, end
        return self._threads.submit(
            lambda: self._gateways.read(journal_of(partition), start, start + 1)
        )

    def describe(self, standstill: Standstill) -> str:
        return f"{standstill.partition} stands still: {standstill.kind}"

    def close(self) -> None:
        """Nothing is watched."""


@dataclass(frozen=True)
class Batch:
    """``events``: partition -> seqs; ``gaps``: ranges with a record."""

    ranges: Sequence[Range]
    events: Mapping[str, Sequence[int]]
    gaps: Sequence[Gap] = ()


class Collector(Worker):
    """Writes batches exactly once: a batch is there with its commit record."""

    kind = COLLECT

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name, number)
        assert self.session is not None
        self._publisher = Publisher(
            self.session, gap_seconds=0.0, clock=world.clock, sleep=world.sleep
        )
        self._positions = LinkPositions(self.gateways, world)
        self._partitions = Partitions(cast(Any, self._positions), world.clock)
        self._batches = 0
        self._turns = self._run()

    def step(self) -> None:
        self.due = self.world.now + next(self._turns)

    def _run(self) -> Iterator[float]:
        while True:
            try:
                yield from self._claimed()
            except UnreadableError as error:
                self.say(f"leaves out: {error}")
                self._partitions.stop(error)
            except (ConflictError, UnavailableError) as error:
                self.say(f"claims anew: {error}")
            yield RETRY_SECONDS

    def _claimed(self) -> Iterator[float]:
        """Own the task until the plan changes."""
        task = self.planned()
        if task is None or not task.partitions:
            return
        assert self.session is not None
        acks = Acks.claim(self.session, self._publisher, READER, task.epoch, task.partitions)
        self._partitions.open(cast(FlowSpec, _Exact()))
        self.say(f"claims {acks.offsets} under epoch {task.epoch}")
        while self.planned() == task:
            self._positions.ask(acks.offsets)
            batch = self._next(acks.offsets)
            if batch is None:
                yield POLL_SECONDS
                continue
            yield BATCH_SECONDS * self.world.random.random()
            commit = self._commit(task.epoch)
            self.world.checks.stage(str(commit.path), batch)
            acks.advance(batch.ranges, also=[commit])
            self.say(f"acks {', '.join(f'{p.partition}:{p.end}' for p in batch.ranges)}")
            yield BATCH_SECONDS * self.world.random.random()
            self.session.remove(commit.path, ANY)

    def _next(self, offsets: Mapping[str, int]) -> Batch | None:
        reached = self._partitions.of(offsets)
        gaps = self.world.parts.find_gaps(offsets, reached, MOST)
        if gaps:
            return Batch([gap.piece for gap in gaps], {}, self.world.parts.recorded(gaps))
        safe = {name: reach.safe for name, reach in reached.items()}
        most = self.world.random.randint(1, MOST_IN_BATCH) if self.world.rough else 10**6
        ranges = next_ranges(offsets, safe, most, {})
        return Batch(ranges, {r.partition: self._read(r) for r in ranges}) if ranges else None

    def _read(self, piece: Range) -> list[int]:
        try:
            return self.gateways.read(journal_of(piece.partition), piece.start, piece.end)
        except (DataLossError, UnavailableError) as error:
            damaged = isinstance(error, DataLossError)
            raise UnreadableError(
                piece.partition, piece.start, str(error), damaged=damaged
            ) from error

    def _commit(self, epoch: int) -> Put:
        self._batches += 1
        path = paths.commit(READER, f"{self.name}.{self._batches}")
        return Put(path, Commit(epoch=epoch, staging=(), files=()), ABSENT)


@dataclass(frozen=True)
class _Exact:
    delivery: str = "exactly-once"
