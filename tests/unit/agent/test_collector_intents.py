"""Exactly once into a target that knows batches by number, with owners that die or sleep at any
step.

The target takes a batch unless it has its number, in one step, as a database does. It is written in
the driver after the intent, or in parts by the stage, each under the number of its split.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import pytest

from flumeng.agent.collector import intents
from flumeng.agent.collector.ack import Acks, SupersededError
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch, Filtered, Intent
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.intents import Intents
from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize, Scale, split
from flumeng.config import FlowSpec, parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import BatchId, Written
from flumeng.control.zookeeper import ABSENT, ANY, Put
from flumeng.platform.errors import ConflictError, CorruptError, UnavailableError
from tests.testkit.cluster import new_cluster
from tests.testkit.collector import FakePositions, register
from tests.testkit.owner_steps import Baton, CrashError, SteppingStore, Steps, TurnTaking, crash
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records
from zkschema.bootstrap import flow_folders

FLOW, TASK = "web", "collect.0"
JOURNALS = {"web.n1.0.aaaaaaaa": 7, "web.n2.0.bbbbbbbb": 5}
BATCH_EVENTS = 5
WHEN: tuple[Intent, ...] = ("before", "after")


@dataclass
class Target:
    """Remembers the last number of each part of a series; rows have their revision. A batch must
    always come with the ``filters`` of the other site with which it was decided."""

    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    filters: dict[BatchId, str] = field(default_factory=dict)

    def take(self, batch: BatchId, split: int, rows: Sequence[str], filters: str) -> None:
        assert self.filters.setdefault(batch, filters) == filters
        if self.numbers.get((batch.series, split), 0) < batch.number:
            self.numbers[batch.series, split] = batch.number
            self.rows += rows


@dataclass
class NumberedPipeline:
    """``changed``: a pipeline of a later revision and with another number of cores."""

    spec: FlowSpec
    intent: Intent
    target: Target
    steps: Steps
    revision: int
    parts: int
    roots: tuple[str, ...] = ()
    spare_roots: frozenset[str] = frozenset()
    shareable: bool = False
    trouble: str = ""
    filters: str = ""
    outdated: bool = False

    def event_bytes(self) -> None:
        return None

    def filtered(self) -> Filtered:
        return Filtered()

    def splits(self, ranges: Sequence[Range], scale: Scale) -> int:
        return len(split(ranges, self.parts, 1, scale))

    def joined(self, _ranges: Sequence[Range]) -> dict[str, JoinedRange]:
        return {}

    def write_into(self, task: ClaimedTask, batch: Batch) -> None:
        parts = split(batch.ranges, batch.splits or self.parts, 1)
        rows = [[row for piece in part for row in self._rows(piece)] for part in parts]
        if self.intent == "before":
            assert batch.identity
            for number, part in enumerate(rows):
                self._take(batch.identity, number, part)
            task.settle(batch, [Written(batch.events)])
        else:
            everything = [row for part in rows for row in part]

            def commit(identity: BatchId | None) -> None:
                assert identity
                self._take(identity, 0, everything)

            task.settle(batch, [Written(batch.events, commit=commit)])

    def _take(self, identity: BatchId, split: int, rows: Sequence[str]) -> None:
        self.steps.step("before target")
        self.target.take(identity, split, rows, self.filters)
        self.steps.step("after target")

    def _rows(self, piece: Range) -> list[str]:
        return [f"{piece.partition} {seq}" for seq in range(piece.start, piece.end)]


@cache
def flow_spec() -> FlowSpec:
    return parse_flow(
        f"flow: {FLOW}\nsources: [{{syslog: {{listen: '127.0.0.1:0'}}}}]\n"
        "delivery: exactly-once\nsinks: [{files: {path: /lake}}]\n"
    )


@dataclass
class World:
    """One cluster and one target, with any number of owners, also at the same time."""

    when: Intent
    tree: FakeTree = field(default_factory=FakeTree)
    target: Target = field(default_factory=Target)

    def __post_init__(self) -> None:
        store = new_cluster(self.tree)
        for folder in flow_folders(FLOW)[1:]:
            parent = str(folder).rpartition("/")[0]
            if parent not in self.tree.znodes:
                self.tree.znodes[parent] = type(self.tree.znodes["/"])(b"")
            store.write(folder, None, ANY)
        register(store, FLOW, *JOURNALS)

    def collect(self, epoch: int, steps: Steps | None = None, batch: int = BATCH_EVENTS) -> Steps:
        """Run an owner until all is acked or ``steps`` ends it.

        Each has another batch size and another number of splits.
        """
        steps = steps or Steps()
        store = SteppingStore(self.tree, steps)
        decided = intents.read(store, FLOW, TASK)
        revision = decided.revision if decided and decided.ranges else epoch + 1
        pipeline = NumberedPipeline(
            flow_spec(),
            self.when,
            self.target,
            steps,
            revision,
            parts=1 + epoch % 3,
            filters=decided.filters if decided and decided.ranges else f"filters {epoch}",
        )
        task = ClaimedTask(
            Assignment(FLOW, TASK, epoch, revision, "", tuple(JOURNALS)),
            store,
            Publisher(store, gap_seconds=0.0),
            pipeline,
            FakePositions(JOURNALS),
            size=BatchSize(batch),
        )
        while not task.caught_up:
            if task.may_start and task.backlog(eager=True).events:
                started = task.start()
                assert started
                pipeline.write_into(task, started)
            elif task.running:
                task.commit()
        return steps

    def check_not_twice(self) -> None:
        assert max(Counter(self.target.rows).values(), default=0) <= 1

    def check_done(self) -> None:
        everything = [f"{name} {seq}" for name, end in JOURNALS.items() for seq in range(end)]
        assert Counter(self.target.rows) == Counter(everything)
        store = FakeStore(self.tree)
        acks = {name: store.read(paths.ack(FLOW, "main", name)) for name in JOURNALS}
        assert {name: ack.value.offset for name, ack in acks.items() if ack} == JOURNALS
        intent = store.read(paths.intent(FLOW, TASK))
        assert intent
        assert not intent.value.ranges


def late(world: World, epoch: int, steps: Steps) -> None:
    """Run an owner that may be overtaken: fencing ends it."""
    with suppress(ConflictError, UnavailableError):
        world.collect(epoch, steps, batch=3 + epoch)


def number_of_steps(when: Intent) -> int:
    return World(when).collect(1).count


@pytest.mark.parametrize("when", WHEN)
def test_undisturbed_owner_numbers_its_batches(when: Intent) -> None:
    world = World(when)
    steps = world.collect(1)
    world.check_done()
    assert max(world.target.numbers.values()) == 3
    names = [name for name in steps.names if name in ("after commit", "before target")]
    first = names.index("before target")
    assert names[first - 1] == "after commit", "the intent is there before the target is written"


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("next_epoch", [1, 2])
def test_owner_may_die_at_any_step(when: Intent, next_epoch: int) -> None:
    for at in range(number_of_steps(when)):
        world = World(when)
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.check_not_twice()
        world.collect(next_epoch, batch=3)
        world.check_done()


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
def test_successor_may_die_at_any_step_too(when: Intent) -> None:
    for at in range(number_of_steps(when)):
        for then in range(0, 40, 3):
            world = World(when)
            with pytest.raises(CrashError):
                world.collect(1, Steps(at, crash))
            with suppress(CrashError):
                world.collect(2, Steps(then, crash), batch=3)
            world.check_not_twice()
            world.collect(3, batch=4)
            world.check_done()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("next_epoch", [1, 2])
def test_owner_may_sleep_at_any_step_while_another_does_all_the_work(
    when: Intent, next_epoch: int
) -> None:
    for at in range(number_of_steps(when)):
        world = World(when)

        def overtake(world: World = world) -> None:
            world.collect(next_epoch, batch=3)
            world.check_done()

        late(world, 1, Steps(at, overtake))
        world.check_not_twice()
        world.collect(next_epoch + 1)
        world.check_done()


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
def test_owner_may_sleep_at_any_step_while_another_dies_at_any_step(when: Intent) -> None:
    for at in range(number_of_steps(when)):
        for then in range(0, 40, 3):
            world = World(when)

            def overtake(world: World = world, then: int = then) -> None:
                with suppress(CrashError):
                    world.collect(2, Steps(then, crash), batch=3)

            late(world, 1, Steps(at, overtake))
            world.check_not_twice()
            world.collect(3, batch=4)
            world.check_done()


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("seed", range(200))
def test_three_owners_may_take_turns_in_any_order(when: Intent, seed: int) -> None:
    """Each step of each of three owners may be followed by any step of any other, or by death."""
    world = World(when)
    baton = Baton(random.Random(seed), owners=3)

    def live(number: int) -> None:
        with suppress(CrashError):
            late(world, number // 2, TurnTaking(baton=baton, number=number))
        baton.leave(number)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.check_not_twice()
    world.collect(9)
    world.check_done()


@pytest.mark.parametrize("when", WHEN)
def test_lost_answer_is_settled_by_claiming_again(when: Intent) -> None:
    def lose() -> None:
        raise UnavailableError("no answer")

    for at in range(number_of_steps(when)):
        world = World(when)
        with suppress(UnavailableError):
            world.collect(1, Steps(at, lose))
        world.collect(1, batch=3)
        world.check_done()


def decided(change: Callable[[records.Intent], records.Intent] = lambda it: it) -> World:
    """A world whose first batch is decided and not written."""
    names = World("after").collect(1).names
    world = World("after")
    with pytest.raises(CrashError):
        world.collect(1, Steps(names.index("before target"), crash))
    store = FakeStore(world.tree)
    found = store.read(paths.intent(FLOW, TASK))
    assert found
    store.write(paths.intent(FLOW, TASK), change(found.value), found.version)
    return world


def test_intent_that_does_not_follow_the_acks_is_reported_and_not_written() -> None:
    world = decided()
    store = FakeStore(world.tree)
    name = min(JOURNALS)
    found = store.read(paths.ack(FLOW, "main", name))
    assert found
    moved = records.Ack(epoch=1, offset=found.value.offset + 1)
    store.commit([Put(paths.ack(FLOW, "main", name), moved, found.version)])
    with pytest.raises(CorruptError, match=r"has batch 1, which reads partition web.n1"):
        world.collect(2)
    assert world.target.rows == []


def test_no_new_event_is_read_while_a_journal_of_the_decided_batch_is_absent() -> None:
    world = decided()
    store = FakeStore(world.tree)
    pipeline = NumberedPipeline(
        flow_spec(), "after", world.target, Steps(), 2, parts=1, filters="filters 1"
    )
    last = max(JOURNALS)

    task = ClaimedTask(
        Assignment(FLOW, TASK, 2, 2, "", tuple(JOURNALS)),
        store,
        Publisher(store, gap_seconds=0.0),
        pipeline,
        FakePositions({last: JOURNALS[last]}),
        size=BatchSize(BATCH_EVENTS),
    )
    assert task.repeating
    assert task.backlog(eager=True).due_seconds is None
    assert task.start() is None
    assert not task.caught_up


def test_decided_batch_is_not_repeated_with_other_filters_of_its_site() -> None:
    """Another owner may decide it after this one has looked."""
    world = decided()
    store = FakeStore(world.tree)
    pipeline = NumberedPipeline(
        flow_spec(), "after", world.target, Steps(), 2, parts=1, filters="filters 2"
    )
    with pytest.raises(ConflictError, match="other filters"):
        ClaimedTask(
            Assignment(FLOW, TASK, 2, 2, "", tuple(JOURNALS)),
            store,
            Publisher(store, gap_seconds=0.0),
            pipeline,
            FakePositions(JOURNALS),
            size=BatchSize(BATCH_EVENTS),
        )


def test_a_flow_of_the_same_name_begins_another_series() -> None:
    """Its numbers start again, and the target remembers the old ones."""
    world = World("after")
    world.collect(1)
    first = dict(world.target.numbers)
    other = World("after", target=world.target)
    world.target.rows.clear()
    other.collect(1)
    other.check_done()
    assert len(other.target.numbers) == 2 * len(first)


def owners(store: FakeStore) -> Iterator[Intents]:
    for epoch in (1, 2):
        acks = Acks.claim(store, Publisher(store, gap_seconds=0.0), FLOW, epoch, JOURNALS)
        yield Intents(store, acks, FLOW, TASK)


def test_owner_that_lost_its_acks_decides_nothing() -> None:
    world = World("after")
    old, _ = owners(FakeStore(world.tree))
    with pytest.raises(ConflictError):
        old.decide([Range(min(JOURNALS), 0, 3)], 1, 1)
    assert intents.read(FakeStore(world.tree), FLOW, TASK) is None


def test_owner_fenced_by_a_master_decides_nothing() -> None:
    """Journals have left the task, and their next owner has not claimed them yet."""
    world = World("after")
    store = FakeStore(world.tree)
    acks = Acks.claim(store, Publisher(store, gap_seconds=0.0), FLOW, 1, JOURNALS)
    old = Intents(store, acks, FLOW, TASK)
    fence = records.Intent(epoch=2, series="", number=0, revision=0, splits=1, ranges={})
    store.write(paths.intent(FLOW, TASK), fence, ABSENT)
    with pytest.raises(ConflictError):
        old.decide([Range(min(JOURNALS), 0, 3)], 1, 1)
    again = Acks.claim(store, Publisher(store, gap_seconds=0.0), FLOW, 1, JOURNALS)
    with pytest.raises(SupersededError) as superseded:
        Intents(store, again, FLOW, TASK)
    assert superseded.value.epoch == 2
    world.collect(2)
    world.check_done()
    assert all(series.startswith(f"{FLOW}.{TASK}.") for series, _ in world.target.numbers)
