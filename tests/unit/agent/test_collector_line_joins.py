"""Lines that are joined to events, through the acks: each line once, with a crash at any step.

A collector's every step on ZooKeeper and on the lake is counted, as in ``test_collector_crashes``.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.lines.groups import Limits, Lines, group
from flumeng.agent.collector.outcome import BatchFailedError
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize, share_out
from flumeng.config import FlowSpec, parse_flow
from flumeng.config.multiline import PIECE_SECONDS
from flumeng.connectors.api.ranged import Progress, Range, Reach
from flumeng.connectors.api.sink import Written
from flumeng.platform.errors import ConflictError, UnavailableError
from tests.testkit.collector import ScriptedPipeline, StillPositions
from tests.testkit.owner_steps import CrashError, SteppingStore, Steps, crash
from tests.testkit.store import FakeStore
from tests.unit.agent.test_collector_crashes import FLOW, JOURNALS, SteppingFileStore, World
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Joined

FIRST, SECOND = JOURNALS
ENDS = {FIRST: 9, SECOND: 4}
TRACE = 3
"""Each stream has a start once in so many lines."""
STREAMS = 2
TIMEOUT_SECONDS = 5.0


def spec(multiline: str = "{continues: '^ '}", delivery: str = "exactly-once") -> FlowSpec:
    return parse_flow(
        f"flow: {FLOW}\nsources: [{{syslog: {{listen: '127.0.0.1:0'}}}}]\n"
        f"delivery: {delivery}\nsinks: [{{files: {{path: /lake}}}}]\nbatch: {{seconds: 0}}\n"
        + (f"multiline: {multiline}\n" if multiline else "")
    )


SPEC = spec()
assert SPEC.multiline
RULES = SPEC.multiline.digest


def lines(start: int, end: int) -> Lines:
    offsets = np.arange(start, end, dtype=np.int64)
    return Lines(
        offsets=offsets,
        times=offsets,
        streams=offsets % STREAMS,
        starts=offsets // STREAMS % TRACE == 0,
        sizes=np.ones(len(offsets), np.int64),
    )


def trace(number: int) -> tuple[int, int]:
    """The stream of a line, and the number of its trace."""
    return number % STREAMS, number // STREAMS // TRACE


class JoiningPipeline(ScriptedPipeline):
    """Writes a file for each range, with one event a line and the offsets of its lines."""

    told: dict[str, JoinedRange]

    def joined(self, ranges: Sequence[Range]) -> dict[str, JoinedRange]:
        return {piece.partition: self.told[piece.partition] for piece in ranges if self.told}

    def write_into(self, task: ClaimedTask, batch: Batch) -> None:
        try:
            task.settle(batch, self.emit(batch))
        except OSError as error:
            task.settle(batch, error)

    def emit(self, batch: Batch) -> list[Written]:
        ((root, directory),) = batch.staging.items()
        files = []
        self.told = {}
        for piece in batch.ranges:
            at = Progress(piece.start, piece.emitted)
            limits = Limits(10**9, 500, 10**6)
            found = group(lines(piece.start, piece.end), at, piece.end, limits, flush=piece.flush)
            self.told[piece.partition] = JoinedRange(piece, found.progress, {})
            text, first = "", 0
            for count in found.counts.tolist():
                rows = found.rows[first : first + count] + piece.start
                text += f"{piece.partition} {','.join(map(str, rows))}\n"
                first += count
            if text:
                name = f"part-{uuid.uuid4().hex}.log"
                Path(directory, name).write_text(text)
                files.append((f"{directory}/{name}", f"{root}/kind=0/{name}"))
        return [Written(len(files), tuple(files))]


@dataclass
class Growing(StillPositions):
    """Partitions that grow while they are read."""

    there: dict[str, int]
    closed: bool = False

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {name: Reach("", self.there[name], closed=self.closed) for name in partitions}


@dataclass
class LinesWorld(World):
    """``grow`` is the chance of a new line when there is no other work."""

    there: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    now: float = 0.0
    flow: FlowSpec = SPEC
    patience: int = 1000

    def task(
        self,
        epoch: int,
        steps: Steps,
        positions: Growing | None = None,
        intent: Literal["before"] | None = None,
    ) -> ClaimedTask:
        store = SteppingStore(self.tree, steps)
        return ClaimedTask(
            Assignment(FLOW, "collect.0", epoch, 1, "", tuple(ENDS)),
            store,
            Publisher(store, gap_seconds=0.0),
            JoiningPipeline(self.flow, roots=(str(self.root),), intent=intent),
            positions or Growing(self.there),
            size=BatchSize(4),
            clock=lambda: self.now,
            open_store=SteppingFileStore(steps).open_store,
        )

    def collect(self, epoch: int, steps: Steps | None = None) -> Steps:
        steps = steps or Steps()
        task = self.task(epoch, steps)
        try:
            for _ in range(self.patience):
                if self.there == ENDS and self.emitted() == ENDS and not task.running:
                    return steps
                self.turn(task)
        finally:
            task.close()
        pytest.fail(f"no end: {self.emitted()} of {self.there}")

    def turn(self, task: ClaimedTask) -> None:
        pipeline = task._pipeline
        assert isinstance(pipeline, JoiningPipeline)
        if task.running:
            task.commit()
            return
        due = task.backlog(eager=True).due_seconds
        if due == 0.0:
            batch = task.start()
            assert batch
            pipeline.write_into(task, batch)
        elif self.there != ENDS and self.chance.random() < 0.8:
            name = self.chance.choice([name for name in ENDS if self.there[name] < ENDS[name]])
            self.there[name] = min(ENDS[name], self.there[name] + self.chance.randint(1, 3))
        else:
            self.now += 2.0

    def ack(self, name: str) -> Ack:
        found = FakeStore(self.tree).read(paths.ack(FLOW, CURSOR_MAIN, name))
        return found.value if found else Ack(epoch=0, offset=0)

    def emitted(self) -> dict[str, int]:
        return {name: self.ack(name).emitted for name in ENDS}

    def events(self) -> list[tuple[str, list[int]]]:
        found = [line.split() for line in self.shown().elements()]
        return [(name, [int(number) for number in numbers.split(",")]) for name, numbers in found]

    def check_visible(self) -> None:
        shown = Counter((name, number) for name, event in self.events() for number in event)
        assert max(shown.values(), default=0) <= 1
        for name, event in self.events():
            assert len({trace(number) for number in event}) == 1, (name, event)
            assert event == sorted(event)

    def check_done(self) -> None:
        self.check_visible()
        shown = sorted((name, number) for name, event in self.events() for number in event)
        assert shown == sorted((name, n) for name, end in ENDS.items() for n in range(end))
        assert self.staged() == []
        assert self.records() == []
        for name, end in ENDS.items():
            assert (self.ack(name).offset, self.ack(name).joined) == (end, None)


def worlds(tmp_path: Path) -> Iterator[LinesWorld]:
    number = 0
    while True:
        number += 1
        yield LinesWorld(tmp_path / f"lake-{number}", chance=random.Random(number % 7))


@pytest.mark.slow
@pytest.mark.parametrize("next_epoch", [1, 2])
def test_collector_may_die_at_any_step(tmp_path: Path, next_epoch: int) -> None:
    died = 0
    for at, world in enumerate(worlds(tmp_path)):
        try:
            world.collect(1, Steps(at, crash))
        except CrashError:
            died += 1
            world.check_visible()
            world.collect(next_epoch)
            world.check_done()
        else:
            world.check_done()
            break
    assert died > 30


@pytest.mark.slow
def test_collector_may_sleep_at_any_step_while_another_does_all_the_work(tmp_path: Path) -> None:
    for at, world in enumerate(worlds(tmp_path)):
        slept: list[int] = []

        def overtake(world: LinesWorld = world, slept: list[int] = slept) -> None:
            slept.append(1)
            world.collect(2)

        late(world, 1, Steps(at, overtake))
        if not slept:
            break
        world.collect(3)
        world.check_done()


def late(world: LinesWorld, epoch: int, steps: Steps) -> None:
    with contextlib.suppress(ConflictError, UnavailableError):
        world.collect(epoch, steps)


def run(world: LinesWorld, task: ClaimedTask, until: Callable[[], bool]) -> None:
    for _ in range(world.patience):
        if until():
            return
        world.turn(task)
    pytest.fail("no end")


def test_ack_stays_below_the_first_line_of_an_open_event(tmp_path: Path) -> None:
    """Line 0 starts an event of lines 0, 2 and 4, and line 1 one of 1, 3 and 5; 6 starts the next
    of the first stream. So the first event is emitted, and has lines behind the start of the
    second."""
    world = LinesWorld(tmp_path, there={FIRST: 7, SECOND: 0}, chance=Never())
    task = world.task(1, Steps())
    run(world, task, lambda: world.ack(FIRST).emitted > 0)
    joined = Joined(offset=0, emitted=1, rules=RULES)
    assert world.ack(FIRST) == Ack(epoch=1, offset=0, joined=joined)
    assert world.events() == [(FIRST, [0, 2, 4])]
    world.there[FIRST] = 8
    run(world, task, lambda: world.ack(FIRST).emitted > 1)
    assert world.ack(FIRST).emitted == 6
    assert world.ack(FIRST).offset == 6
    assert sorted(world.events()) == [(FIRST, [0, 2, 4]), (FIRST, [1, 3, 5])]


def test_last_event_is_emitted_after_the_timeout(tmp_path: Path) -> None:
    world = LinesWorld(tmp_path, there={FIRST: 2, SECOND: 0}, chance=Never())
    task = world.task(1, Steps())
    world.turn(task)
    world.turn(task)
    assert world.emitted()[FIRST] == 0
    backlog = task.backlog(eager=False)
    assert task.caught_up, "who stops does not wait for it"
    assert (backlog.events, backlog.due_seconds) == (1, TIMEOUT_SECONDS)
    world.there[FIRST] = 3
    world.now = 4.0
    run(world, task, lambda: not task.running and task.planned[FIRST] == 3)
    assert task.backlog(eager=True).due_seconds == TIMEOUT_SECONDS
    world.now += TIMEOUT_SECONDS
    run(world, task, lambda: world.emitted()[FIRST] == 3)
    assert sorted(world.events()) == [(FIRST, [0, 2]), (FIRST, [1])]


def test_rest_of_a_containers_message_is_waited_for_longer(tmp_path: Path) -> None:
    """Also by the next owner, which has no progress yet, and reads the rows that show that it goes
    on."""
    flow = spec("{container: cri}")
    world = LinesWorld(tmp_path, there={FIRST: 4, SECOND: 0}, chance=Never(), flow=flow)
    task = world.task(1, Steps())
    world.now = TIMEOUT_SECONDS + 1
    batch = finish(task, Progress(1, 3, 2), unfinished=True)
    assert (batch.flush, batch.sure) == (False, 0)
    assert flow.multiline
    joined = Joined(offset=1, emitted=3, rules=flow.multiline.digest, sure=2)
    assert world.ack(FIRST) == Ack(epoch=1, offset=1, joined=joined)
    assert task.backlog(eager=True).due_seconds == PIECE_SECONDS
    after = world.task(2, Steps())
    world.there[FIRST] = 5
    after.backlog(eager=True)
    world.now += TIMEOUT_SECONDS + 1
    batch = finish(after, Progress(1, 3, 2), unfinished=False)
    assert (batch.start, batch.emitted, batch.sure, batch.flush) == (1, 3, 2, False)
    assert after.backlog(eager=True).due_seconds == 0.0


def finish(task: ClaimedTask, progress: Progress, *, unfinished: bool) -> Range:
    """The range of a batch with this end."""
    pipeline = task._pipeline
    assert isinstance(pipeline, JoiningPipeline)
    task.backlog(eager=True)
    batch = task.start()
    assert batch
    (piece,) = batch.ranges
    pipeline.write_into(task, batch)
    pipeline.told = {piece.partition: JoinedRange(piece, progress, {}, unfinished)}
    task.commit()
    return piece


def test_closed_journal_waits_for_no_further_lines(tmp_path: Path) -> None:
    world = LinesWorld(tmp_path, chance=Never())
    task = world.task(1, Steps(), Growing(ENDS, closed=True))
    run(world, task, lambda: world.emitted() == ENDS and not task.running)
    assert world.now == 0.0
    assert len(world.events()) == sum(
        len({trace(number) for number in range(end)}) for end in ENDS.values()
    )


def test_decided_batch_is_repeated_with_the_same_flushed_events(tmp_path: Path) -> None:
    """Else the same number would stand for other events, once more lines have come."""
    world = LinesWorld(tmp_path, there={FIRST: 4, SECOND: 0}, chance=Never())
    first = world.task(1, Steps(), Growing(world.there, closed=True), "before")
    decided = first.start()
    assert decided
    assert decided.ranges == (Range(FIRST, 0, 4, emitted=0, flush=True),)
    world.there[FIRST] = 8
    again = world.task(2, Steps(), None, "before")
    assert again.backlog(eager=True).due_seconds == 0.0
    repeated = again.start()
    assert repeated
    assert (repeated.ranges, repeated.identity) == (decided.ranges, decided.identity)
    pipeline = again._pipeline
    assert isinstance(pipeline, JoiningPipeline)
    pipeline.write_into(again, repeated)
    again.commit()
    assert world.ack(FIRST) == Ack(epoch=2, offset=4)
    following = again.start()
    assert following
    assert following.ranges == (Range(FIRST, 4, 8, emitted=4),)


def test_batch_without_reported_progress_is_not_acked(tmp_path: Path) -> None:
    """Spark need not read columns that a statement does not ask for."""
    world = LinesWorld(tmp_path, there={FIRST: 4, SECOND: 0}, chance=Never())
    task = world.task(1, Steps(), Growing(world.there, closed=True))
    world.turn(task)
    pipeline = task._pipeline
    assert isinstance(pipeline, JoiningPipeline)
    pipeline.told = {}
    with pytest.raises(BatchFailedError, match="LIMIT"):
        task.commit()
    assert world.emitted()[FIRST] == 0


def test_event_of_more_lines_than_a_batch_is_waited_for(tmp_path: Path) -> None:
    """A batch in which nothing ends is not repeated as it is: the next one reads more."""
    world = LinesWorld(tmp_path, there=dict(ENDS), chance=Never())
    task = world.task(1, Steps())
    task._size.cap = task._size.events = 1
    run(world, task, lambda: world.emitted() == ENDS and not task.running)
    world.check_done()


@pytest.mark.parametrize("multiline", ["", "{continues: '^ ', max_lines: 7}"])
def test_changed_rules_begin_behind_the_emitted_lines(tmp_path: Path, multiline: str) -> None:
    """By other rules a line may go on with an event that is emitted: it would be lost."""
    world = LinesWorld(tmp_path, there={FIRST: 7, SECOND: 0}, chance=Never())
    run(world, world.task(1, Steps()), lambda: world.ack(FIRST).emitted > 0)
    assert world.ack(FIRST).offset == 0
    world.flow = spec(multiline)
    world.task(2, Steps())
    assert world.ack(FIRST) == Ack(epoch=2, offset=1)


def test_moved_ack_ignores_the_emitted_position() -> None:
    joined = Joined(offset=5, emitted=9, rules="x")
    assert Ack(epoch=1, offset=5, joined=joined).emitted == 9
    assert Ack(epoch=1, offset=3, joined=joined).emitted == 3


def test_ranges_of_joined_lines_are_not_split() -> None:
    ranges = [Range(name, 0, size) for name, size in (("a", 5), ("b", 9), ("c", 3), ("d", 2))]
    splits = share_out(ranges, 2, 1)
    assert [[piece.partition for piece in of] for of in splits] == [["b"], ["a", "c", "d"]]
    assert len(share_out(ranges, 8, 1)) == 4
    assert len(share_out(ranges, 8, 10)) == 1
    assert share_out([], 8, 1) == ()


class Never(random.Random):
    """No line is added."""

    def random(self) -> float:
        return 1.0
