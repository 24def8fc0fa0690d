"""Real tables under owners that die or sleep at any step: each event is there once.

Steps are those on ZooKeeper, and each look at the table and each commit of it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.collector import intents
from flumeng.collector.publisher import Publisher
from flumeng.collector.ranges import BatchSize
from flumeng.collector.step_testing import (
    Baton,
    CrashError,
    SteppingStore,
    Steps,
    TurnTaking,
    crash,
)
from flumeng.collector.task import Assignment, Task
from flumeng.collector.testing import FakePositions, register
from flumeng.collector.work import Filtered, Intent
from flumeng.errors import ConflictError, UnavailableError
from flumeng.inputs import Range
from flumeng.inputs.lines.joined import JoinedRange
from flumeng.sinks.tables import TableSink
from flumeng.sinks.testing.tables import DeltaDirectory, IcebergDirectory, staged
from flumeng.spec import FlowSpec, parse_flow
from flumeng.store import tree
from flumeng.testing import FakeStore, FakeTree
from zkschema import paths
from zkschema.bootstrap import flow_folders

FLOW, TASK = "web", "collect.0"
JOURNALS = {"web.n1.0.aaaaaaaa": 4, "web.n2.0.bbbbbbbb": 3}
FLOW_TEXT = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:0"}}]
delivery: exactly-once
sinks: [{delta: {path: /lake}}]
"""
NEAR_THE_TABLE = ("look", "append")
Directory = DeltaDirectory | IcebergDirectory


class Stepping:
    """A table that says when it is looked at and when it is committed to."""

    def __init__(self, table: Any, steps: Steps) -> None:
        look, append = table._load, table._append

        def load() -> Any:
            found = look()
            steps.step("after look")
            return found

        def add(*given: Any) -> None:
            steps.step("before append")
            append(*given)
            steps.step("after append")

        table._load, table._append = load, add
        self.prepare, self.add = table.prepare, table.add


@dataclass
class TablePipeline:
    spec: FlowSpec
    sink: TableSink
    roots: tuple[str, ...] = ()
    shareable: bool = False
    intent: Intent | None = "after"
    trouble: str = ""

    def event_bytes(self) -> None:
        return None

    def filtered(self) -> Filtered:
        return Filtered()

    def splits(self, _ranges: Sequence[Range]) -> int:
        return 1

    def joined(self, _ranges: Sequence[Range]) -> dict[str, JoinedRange]:
        return {}


class World:
    """One cluster and one table, and as many owners after and over each other as wanted."""

    def __init__(self, lake: Directory) -> None:
        self.lake = lake
        self.tree = FakeTree()
        store = FakeStore(self.tree)
        tree.init(store)
        self.tree.znodes[f"/flows/{FLOW}"] = type(self.tree.znodes["/"])(b"")
        for folder in flow_folders(FLOW):
            if not store.exists(folder):
                self.tree.znodes[str(folder)] = type(self.tree.znodes["/"])(b"")
        register(store, FLOW, *JOURNALS)

    def collect(self, epoch: int, steps: Steps | None = None) -> Steps:
        """An owner's life: until all is acked, or whatever ``steps`` does to it."""
        steps = steps or Steps()
        store = SteppingStore(self.tree, steps)
        sink = self.lake.sink()
        assert isinstance(sink, TableSink)
        task = Task(
            Assignment(FLOW, TASK, epoch, 1, "", tuple(JOURNALS)),
            store,
            Publisher(store, gap_seconds=0.0),
            TablePipeline(parse_flow(FLOW_TEXT), sink),
            FakePositions(JOURNALS),
            size=BatchSize(4 + epoch % 2),
        )
        looked = TableSink(Stepping(sink._table, steps))
        while not task.caught_up:
            if task.may_start and task.look(eager=True).events:
                batch = task.start()
                assert batch
                rows = [f"{r.partition} {n}" for r in batch.ranges for n in range(r.start, r.end)]
                written = looked.written(staged(looked, pa.table({"event": rows})))
                task.settle(batch, [written])
            elif task.running:
                task.commit()
        return steps

    def rows(self) -> list[str]:
        with suppress(Exception):  # there may be no table yet
            return list(self.lake.rows()["event"].to_pylist())
        return []

    def check_not_twice(self) -> None:
        assert max(Counter(self.rows()).values(), default=0) <= 1

    def check_done(self) -> None:
        everything = [f"{name} {seq}" for name, end in JOURNALS.items() for seq in range(end)]
        assert Counter(self.rows()) == Counter(everything)
        store = FakeStore(self.tree)
        acks = {name: store.read(paths.ack(FLOW, "main", name)) for name in JOURNALS}
        assert {name: ack.value.offset for name, ack in acks.items() if ack} == JOURNALS
        decided = intents.read(store, FLOW, TASK)
        assert decided is not None
        assert not decided.ranges


@pytest.fixture(params=[DeltaDirectory, IcebergDirectory], ids=["delta", "iceberg"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    def fresh() -> Iterator[World]:
        number = 0
        while True:
            number += 1
            (tmp_path / str(number)).mkdir()
            yield World(request.param(tmp_path / str(number)))

    return fresh()


def late(world: World, epoch: int, steps: Steps) -> None:
    """An owner that may be overtaken: being fenced ends it."""
    with suppress(ConflictError, UnavailableError):
        world.collect(epoch, steps)


def steps_to_try(world: World) -> list[int]:
    """Every step into Delta; into Iceberg, whose commits are slow, those between the first look at
    the table and the ack of the first batch."""
    steps = world.collect(1)
    world.check_done()
    if isinstance(world.lake, DeltaDirectory):
        return list(range(steps.count))
    first = steps.names.index("before append")
    return list(range(first - 4, first + 5))


def test_it_may_die_at_any_step(worlds: Iterator[World]) -> None:
    for at in steps_to_try(next(worlds)):
        world = next(worlds)
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.check_not_twice()
        world.collect(2)
        world.check_done()


def test_it_may_sleep_at_any_step_while_another_does_all_the_work(
    worlds: Iterator[World],
) -> None:
    """The sleeper wakes up believing that it owns the task. It must end fenced or find all done."""
    for at in steps_to_try(next(worlds)):
        world = next(worlds)

        def overtake(world: World = world) -> None:
            world.collect(2)
            world.check_done()

        late(world, 1, Steps(at, overtake))
        world.check_not_twice()
        world.collect(3)
        world.check_done()


@pytest.mark.parametrize("seed", range(8))
def test_three_may_take_turns_in_any_order(worlds: Iterator[World], seed: int) -> None:
    """Each step of each of three owners may be followed by any step of any other, or by death."""
    world = next(worlds)
    baton = Baton(random.Random(seed), owners=3)

    def live(number: int) -> None:
        with suppress(CrashError):
            late(world, number + 1, TurnTaking(baton=baton, number=number))
        baton.leave(number)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    world.check_not_twice()
    world.collect(9)
    world.check_done()


def test_an_answer_that_is_lost_is_settled_by_looking_again(worlds: Iterator[World]) -> None:
    """A commit may have happened although its owner was told that the table is away."""

    def lose() -> None:
        raise UnavailableError("no answer")

    for at in steps_to_try(next(worlds)):
        world = next(worlds)
        with suppress(UnavailableError):
            world.collect(1, Steps(at, lose))
        world.collect(1)
        world.check_done()
