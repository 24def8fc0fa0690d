"""A modelled collector: its tasks claim and move acks with the code that the real one has.

The processing of events is left out; when and under which claim their acks move is as in
``flumeng.agent.collector.runner`` and ``flumeng.agent.collector.claim``. For a target that knows
batches by number they decide and repeat batches with that code too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from flumeng.agent.collector.ack import Acks, SupersededError
from flumeng.agent.collector.claim import can_be_read
from flumeng.agent.collector.gaps import Gap, left_out
from flumeng.agent.collector.intents import Intents, read
from flumeng.agent.collector.publisher import Publisher
from flumeng.config import FlowSpec, parse_flow
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.control.snapshot.partitions import OBJECTS, input_of
from flumeng.control.zookeeper import ABSENT, ANY, Path, Put, Write
from flumeng.platform.errors import ConflictError, CorruptError, UnavailableError, UserError
from tests.testkit.simulation.canary import BROKEN
from tests.testkit.simulation.child import END_OF_INPUT, ChildProcess
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.lanes import Lanes, Reaches, SteppedWatcher
from tests.testkit.simulation.output import Events
from tests.testkit.simulation.stepped_node import SteppedNode
from zkschema import paths
from zkschema.records import Commit, Intent

RETRY_SECONDS = 0.5
BATCH_SECONDS = 2.0
POLL_SECONDS = 4.0
NEVER = float("inf")


@dataclass(frozen=True)
class Wanted:
    """A task as the node's assignment has it."""

    flow: str
    task: str
    epoch: int
    revision: int
    partitions: tuple[str, ...]
    state: str
    broken: bool
    spec: str

    @property
    def key(self) -> str:
        return f"{self.flow}/{self.task}"


@dataclass(frozen=True)
class Batch:
    """``reached`` are the reaches of lanes; ``gaps`` and ``left_out`` are ranges that are not
    read."""

    ranges: Sequence[Range]
    reached: Reaches = field(default_factory=dict)
    gaps: Sequence[Gap] = ()
    left_out: Sequence[Gap] = ()

    @property
    def also(self) -> list[Write]:
        """Writes in the transaction of its acks."""
        return [write for gap in self.gaps or self.left_out for write in gap.also]


class Runner:
    """One task. ``due`` is the time of its next step; each step is one turn of its loop."""

    def __init__(self, collector: Collector, wanted: Wanted) -> None:
        self.collector = collector
        self.wanted = wanted
        self.stopping = False
        self.due = 0.0
        self.said = self._status("starting")
        self.lanes = collector.lanes(wanted.flow, self._wake) if collector.world.queued else None
        self._turns = self._run()

    def step(self) -> bool:
        """Whether there will be another step; others act in between."""
        wait = next(self._turns, None)
        if wait is None:
            return False
        self.due = self.collector.world.now + wait
        return True

    def assign(self, wanted: Wanted) -> None:
        if wanted != self.wanted:
            self.wanted, self.due = wanted, 0.0

    def stop(self) -> None:
        self.stopping, self.due = True, 0.0

    def _wake(self) -> None:
        self.due = min(self.due, self.collector.world.now)

    def _run(self) -> Iterator[float]:
        while not self.stopping:
            wanted = self.wanted
            if not self.collector.connected:
                yield RETRY_SECONDS
                continue
            try:
                if wanted.state == "draining":
                    self._say("stopped")
                elif wanted.broken and not self.collector.is_outdated(wanted):
                    self._say("failed", "broken")
                elif wanted.state == "standby":
                    self._say("standby")
                else:
                    yield from self._batches(wanted)
            except UnreadableError as error:
                assert self.lanes is not None
                self.collector.say(f"{wanted.key} leaves out: {error}")
                self.lanes.partitions.stop(error)
                continue
            except (CorruptError, UserError) as error:
                self.collector.say(f"{wanted.key} cannot go on: {error}")
                self._say("failed", "corrupt")
                yield RETRY_SECONDS
                continue
            except SupersededError as error:
                self.collector.say(f"{wanted.key} is superseded: {error}")
                self._say("stopped", "superseded", error.epoch)
            except (ConflictError, UnavailableError) as error:
                self.collector.say(f"{wanted.key} is claimed anew: {error}")
                yield RETRY_SECONDS
                continue
            while self.wanted == wanted and not self.stopping:
                yield NEVER
        if self.lanes is not None:
            self.lanes.partitions.close()

    def _batches(self, wanted: Wanted) -> Iterator[float]:
        """Own the task until the assignment changes."""
        collector = self.collector
        if self.lanes is not None:
            self.lanes.partitions.open(collector.spec_of(wanted))
        acks = collector.claim(wanted)
        collector.say(f"{wanted.key} is claimed under epoch {wanted.epoch}: {acks.offsets}")
        collector.finish_commits(wanted.flow)
        intents = collector.intents(wanted, acks) if collector.world.by_batch else None
        if self.lanes is not None and intents is not None and intents.open is not None:
            self.lanes.partitions.leave_out(intents.open.left_out)
        while self.wanted == wanted and not self.stopping:
            outdated = intents and intents.open and intents.open.revision != wanted.revision
            if wanted.broken and not outdated:
                self._say("failed", "broken")
                return
            if not outdated:
                self._say("running")
            reached = self.lanes.reached(acks.offsets) if self.lanes else {}
            if intents is not None and intents.open is not None:
                batch = self._again(intents.open, reached)
            else:
                batch = self._next_batch(acks.offsets, reached)
            if not batch.ranges:
                yield POLL_SECONDS
                continue
            yield BATCH_SECONDS * collector.world.random.random()
            if intents is not None:
                yield from self._by_batch(wanted, acks, intents, batch)
                if outdated and self.lanes is not None:
                    self.lanes.partitions.open(_parsed(wanted.spec))
                continue
            commit = collector.decide(wanted)
            events = self._read(batch)
            for _ in collector.delivery.deliver(acks, batch.ranges, events, commit, batch.also):
                yield BATCH_SECONDS * collector.world.random.random()
            collector.say(f"{wanted.key} acks {_ends(batch.ranges)}")
            if commit:
                yield BATCH_SECONDS * collector.world.random.random()
                collector.finish(commit)

    def _by_batch(
        self, wanted: Wanted, acks: Acks, intents: Intents, batch: Batch
    ) -> Iterator[float]:
        """Decide a batch, unless it is decided, write it and ack it."""
        collector, ranges = self.collector, batch.ranges
        unread = [gap.piece for gap in batch.gaps or batch.left_out]
        if intents.open is None:
            intents.decide(ranges, wanted.revision, 1, unread)
        else:
            intents.leave_out(unread)
        decided = intents.last
        collector.say(f"{wanted.key} writes {decided.number}: {', '.join(map(str, ranges))}")
        yield BATCH_SECONDS * collector.world.random.random()
        collector.write(decided, ranges, self._read(batch, whole=True))
        yield BATCH_SECONDS * collector.world.random.random()
        acks.advance(ranges, also=[intents.end(), *batch.also])
        intents.ended()
        collector.say(f"{wanted.key} acks {_ends(ranges)}")

    def _next_batch(self, offsets: Mapping[str, int], reached: Reaches) -> Batch:
        """Lost ranges of lanes are a batch of their own."""
        if self.lanes is None:
            return Batch(self.collector.next_ranges(offsets))
        gaps = self.lanes.gaps(offsets, reached)
        if gaps:
            return Batch([gap.piece for gap in gaps], reached, gaps)
        more = self.lanes.next_ranges(offsets, reached)
        ranges = self.collector.next_ranges(offsets, more)
        return Batch(ranges, reached, left_out=left_out(_lanes_among(ranges), reached))

    def _again(self, decided: Intent, reached: Reaches) -> Batch:
        ranges = [Range(name, *bounds) for name, bounds in sorted(decided.ranges.items())]
        if self.lanes is None:
            return Batch(self.collector.readable(ranges))
        gaps = self.lanes.gone(ranges, reached)
        if gaps:
            return Batch(ranges, reached, gaps)
        lanes = _lanes_among(ranges)
        others = [piece for piece in ranges if piece not in lanes]
        if not can_be_read(lanes, reached) or (others and not self.collector.readable(others)):
            return Batch([])
        return Batch(ranges, reached, left_out=left_out(lanes, reached))

    def _read(self, batch: Batch, *, whole: bool = False) -> Events:
        """The events of its lanes; of all partitions where ``whole``. Raises UnreadableError."""
        events: dict[str, Iterable[int]] = {}
        for piece in () if batch.gaps else batch.ranges:
            if input_of(piece.partition) == OBJECTS:
                assert self.lanes is not None
                events[piece.partition] = self.lanes.read(piece, batch.reached[piece.partition])
            elif whole:
                events[piece.partition] = range(piece.start, piece.end)
        return events

    def _say(self, state: str, error: str | None = None, epoch_seen: int = 0) -> None:
        self.said = self._status(state, error, epoch_seen)
        self.collector.report_tasks()

    def _status(self, state: str, error: str | None = None, epoch_seen: int = 0) -> dict[str, Any]:
        return {
            "epoch": self.wanted.epoch,
            "revision": self.wanted.revision,
            "state": state,
            "error": error,
            "epoch_seen": epoch_seen,
        }


class Collector(ChildProcess):
    """Has a session of its own. Its tasks take turns, and messages come in between."""

    def __init__(self, world: Cluster, parent: SteppedNode, role: str, name: str) -> None:
        super().__init__(world, parent, role, name)
        self.session = self.world.connect(name)
        self._publisher = Publisher(
            self.session, gap_seconds=0.0, clock=self.world.clock, sleep=self.world.sleep
        )
        self.watcher = SteppedWatcher(self.session, world.clock)
        self.delivery = world.parts.delivery(world.output)
        self._runners: dict[str, Runner] = {}
        self._ending: list[Runner] = []
        self._answers: int | None = None
        self._is_ready = False
        self._commits = 0

    @property
    def connected(self) -> bool:
        assert self.session is not None
        return self.session.connected

    def wake(self) -> None:
        super().wake()
        for runner in self._all:
            runner.due = min(runner.due, self.world.now)

    def journals_grew(self) -> None:
        self.wake()

    @property
    def ready(self) -> bool:
        return super().ready or self.watcher.has_news

    def lanes(self, flow: str, wake: Callable[[], None]) -> Lanes:
        return Lanes(self.world, self.watcher, flow, wake)

    def step(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self.send({"type": "ready"})
        elif self.inbox:
            self._handle(self.inbox.popleft())
        elif self.watcher.has_news:
            self.watcher.turn()
        elif due := [runner for runner in self._all if runner.due <= self.world.now]:
            self._turn(self.world.random.choice(due))
        self.due = min((self.watcher.due, *(runner.due for runner in self._all)))

    def claim(self, wanted: Wanted) -> Acks:
        assert self.session is not None
        acks = self.world.parts.acks.claim(
            self.session, self._publisher, wanted.flow, wanted.epoch, wanted.partitions
        )
        for name, start in acks.offsets.items():
            self.world.checks.on_claimed(name, start)
        return acks

    def is_outdated(self, wanted: Wanted) -> bool:
        """Whether a batch of another revision is to be repeated, by the records that it has
        read."""
        return self._outdated(wanted) is not None

    def spec_of(self, wanted: Wanted) -> FlowSpec:
        """The spec for reading: that of a batch to be repeated, if there is one."""
        assert self.session is not None
        revision = self._outdated(wanted)
        path = paths.revision(wanted.flow, str(revision))
        found = None if revision is None else self.session.read(path)
        return _parsed(wanted.spec if found is None else found.value.effective)

    def _outdated(self, wanted: Wanted) -> int | None:
        """The revision of a batch to be repeated, if it differs."""
        assert self.session is not None
        found = read(self.session, wanted.flow, wanted.task) if self.world.by_batch else None
        is_other = found is not None and found.ranges and found.revision != wanted.revision
        return found.revision if found is not None and is_other else None

    def intents(self, wanted: Wanted, acks: Acks) -> Intents:
        assert self.session is not None
        self._commits += 1
        name = f"{self.name}.{self._commits}"
        kind = self.world.parts.intents
        return kind(self.session, acks, wanted.flow, wanted.task, lambda: name)

    def readable(self, ranges: list[Range]) -> list[Range]:
        """These ranges of journals and topics, if all of them can be read now."""
        files = [self.world.disks.served(piece.partition) for piece in ranges]
        readable = all(
            file is not None and file.floor <= piece.start and piece.end <= file.end
            for file, piece in zip(files, ranges, strict=True)
        )
        return ranges if readable else []

    def write(self, batch: Intent, ranges: Sequence[Range], events: Events) -> None:
        self.world.target.take(batch.series, batch.number, events)
        for piece in ranges:
            self.world.checks.on_written(piece.partition, piece.start, piece.end)

    def next_ranges(self, offsets: Mapping[str, int], more: Sequence[Range] = ()) -> list[Range]:
        """Some readable ranges, and ``more``; each range begins at its ack.

        An owner that cannot read from its ack has perhaps missed another owner's ack.
        """
        random, rough = self.world.random, self.world.rough
        ranges = list(more)
        for name, start in sorted(offsets.items()):
            file = self.world.disks.served(name)
            if file is not None and file.floor > start:
                raise UnavailableError(f"{name} does not hold {start} any more")
            if file is not None and file.end > start:
                end = random.randint(start + 1, file.end) if rough else file.end
                ranges.append(Range(name, start, end))
        return random.sample(ranges, random.randint(1, len(ranges))) if rough and ranges else ranges

    def decide(self, wanted: Wanted) -> list[Write]:
        """A commit record, when the flow is to be delivered exactly once."""
        if not self.world.exactly_once:
            return []
        self._commits += 1
        path = paths.commit(wanted.flow, f"{wanted.task}@{self.name}.{self._commits}")
        return [Put(path, Commit(epoch=wanted.epoch, staging=(), files=()), ABSENT)]

    def finish(self, commit: Sequence[Write]) -> None:
        for write in commit:
            self._remove(write.path)

    def finish_commits(self, flow: str) -> None:
        """Finish the commits of earlier owners."""
        assert self.session is not None
        for name in self.session.children(paths.commits(flow)):
            path = paths.commit(flow, name)
            if self.session.read(path) is not None:
                self._remove(path)

    def report_tasks(self) -> None:
        tasks = {key: runner.said for key, runner in self._runners.items()}
        self.report({"type": "status", "answers": self._answers, "tasks": tasks})

    def _remove(self, commit: Path) -> None:
        assert self.session is not None
        with contextlib.suppress(ConflictError):  # someone else has finished it too
            self.session.remove(commit, ANY)

    @property
    def _all(self) -> list[Runner]:
        return [*self._runners.values(), *self._ending]

    def _turn(self, runner: Runner) -> None:
        if not runner.step() and runner in self._ending:
            self._ending.remove(runner)

    def _handle(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "configure":
            self._answers = message["number"]
            self._configure({task.key: task for task in map(_wanted, message["tasks"])})
        elif kind == "stop":
            self.exit(0)
        else:
            assert message is END_OF_INPUT
            self.exit(0)

    def _configure(self, wanted: Mapping[str, Wanted]) -> None:
        for key in sorted(self._runners.keys() - wanted.keys()):
            runner = self._runners.pop(key)
            runner.stop()
            self._ending.append(runner)
        for key, task in wanted.items():
            if key in self._runners:
                self._runners[key].assign(task)
            else:
                self._runners[key] = Runner(self, task)
        self.report_tasks()


@lru_cache(maxsize=100)
def _parsed(spec: str) -> FlowSpec:
    return parse_flow(spec)


def _lanes_among(ranges: Sequence[Range]) -> list[Range]:
    return [piece for piece in ranges if input_of(piece.partition) == OBJECTS]


def _ends(ranges: Sequence[Range]) -> str:
    return ", ".join(f"{piece.partition}:{piece.end}" for piece in ranges)


def _wanted(task: Mapping[str, Any]) -> Wanted:
    return Wanted(
        task["flow"],
        task["task"],
        task["epoch"],
        task["revision"],
        tuple(task["partitions"]),
        task["state"],
        BROKEN in task["spec"],
        task["spec"],
    )
