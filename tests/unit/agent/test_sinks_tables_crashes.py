"""Real tables under owners that die or sleep at any step: each event is there once.

Steps are those on ZooKeeper, and each look at the table and each commit of it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.agent.collector.batch import Batch
from flumeng.connectors.api.sink import Written
from flumeng.connectors.lakehouse.group_commit import GroupCommit
from flumeng.connectors.lakehouse.tables import TableSink
from flumeng.platform.errors import UnavailableError
from tests.testkit.owner_steps import Baton, CrashError, Steps, TurnTaking, crash
from tests.testkit.servers.tables import TASK, DeltaDirectory, IcebergDirectory, staged
from tests.unit.agent.collecting_owners import World, late

FLOW_TEXT = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:0"}}]
delivery: exactly-once
sinks: [{delta: {path: /lake}}]
"""
Directory = DeltaDirectory | IcebergDirectory


class Stepping:
    """A table whose looks and commits are steps."""

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


class WorldOfTable(World):
    intent = "after"

    def __init__(self, lake: Directory) -> None:
        super().__init__(FLOW_TEXT)
        self.lake = lake

    def sink(self) -> TableSink:
        sink = self.lake.sink()
        assert isinstance(sink, TableSink)
        return sink

    def write(self, sink: TableSink, _batch: Batch, events: list[str], steps: Steps) -> Written:
        stepping: Any = Stepping(sink._table, steps)
        looked = TableSink(stepping, GroupCommit(), TASK)
        return looked.written(staged(looked, pa.table({"event": events})))

    def rows(self) -> list[str]:
        with suppress(Exception):  # there may be no table yet
            return list(self.lake.rows()["event"].to_pylist())
        return []

    def check_not_twice(self) -> None:
        assert max(Counter(self.rows()).values(), default=0) <= 1


@pytest.fixture(params=[DeltaDirectory, IcebergDirectory], ids=["delta", "iceberg"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorldOfTable]:
    def fresh() -> Iterator[WorldOfTable]:
        number = 0
        while True:
            number += 1
            (tmp_path / str(number)).mkdir()
            yield WorldOfTable(request.param(tmp_path / str(number)))

    return fresh()


def steps_to_try(world: WorldOfTable) -> list[int]:
    """Every step into Delta; for Iceberg, whose commits are slow, only the steps between the first
    look at the table and the ack of the first batch."""
    steps = world.collect(1)
    world.check_done()
    if isinstance(world.lake, DeltaDirectory):
        return list(range(steps.count))
    first = steps.names.index("before append")
    return list(range(first - 4, first + 5))


@pytest.mark.long
def test_owner_may_die_at_any_step(worlds: Iterator[WorldOfTable]) -> None:
    for at in steps_to_try(next(worlds)):
        world = next(worlds)
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.check_not_twice()
        world.collect(2)
        world.check_done()


@pytest.mark.long
def test_owner_may_sleep_at_any_step_while_another_does_all_the_work(
    worlds: Iterator[WorldOfTable],
) -> None:
    """The sleeper wakes up believing that it owns the task. It must end fenced or find all done."""
    for at in steps_to_try(next(worlds)):
        world = next(worlds)

        def overtake(world: WorldOfTable = world) -> None:
            world.collect(2)
            world.check_done()

        late(world, 1, Steps(at, overtake))
        world.check_not_twice()
        world.collect(3)
        world.check_done()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_three_owners_may_take_turns_in_any_order(
    worlds: Iterator[WorldOfTable], seed: int
) -> None:
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


@pytest.mark.long
def test_lost_answer_is_settled_by_looking_again(worlds: Iterator[WorldOfTable]) -> None:
    """A commit may have happened although its owner got an error that the table is away."""

    def lose() -> None:
        raise UnavailableError("no answer")

    for at in steps_to_try(next(worlds)):
        world = next(worlds)
        with suppress(UnavailableError):
            world.collect(1, Steps(at, lose))
        world.collect(1)
        world.check_done()
