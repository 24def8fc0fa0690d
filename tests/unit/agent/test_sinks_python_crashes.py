"""Functions that are given batches by number, under owners that die or sleep at any step.

Steps are those on ZooKeeper, and the beginning, the middle and the end of each call. With any
failure a number comes with one set of events only, so that a function that remembers the last
number does each event once, also in a flow that delivers at least once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from flumeng.agent.collector.batch import Batch
from flumeng.connectors.api.sink import Written
from flumeng.connectors.python.sink import BatchNumber, call
from tests.testkit.owner_steps import CrashError, Steps, crash
from tests.unit.agent.collecting_owners import World, late

FLOW_TEXT = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:0"}}]
delivery: %s
sinks: [{python: {function: "company.sinks:store", idempotent: true}}]
"""


@dataclass
class Warehouse:
    """The target of an idempotent function: a known batch number changes nothing."""

    last: dict[str, int] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    seen: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def store(self, steps: Steps, rows: Any, number: BatchNumber) -> None:
        steps.step("before call")
        assert self.seen.setdefault((number.series, int(number)), rows) == rows
        if number > self.last.get(number.series, 0):
            self.rows += rows
            self.last[number.series] = int(number)
        steps.step("after call")


class WorldOfFunction(World):
    intent = "before"

    def __init__(self, delivery: str) -> None:
        super().__init__(FLOW_TEXT % delivery)
        self.warehouse = Warehouse()

    def write(self, _sink: Any, batch: Batch, events: Any, steps: Steps) -> Written:
        def function(rows: Any, number: BatchNumber) -> None:
            self.warehouse.store(steps, rows, number)

        call("store", function, {}, batch.identity, events)
        return Written(0)

    def rows(self) -> list[str]:
        return self.warehouse.rows


@pytest.fixture(params=["at-least-once", "exactly-once"])
def worlds(request: pytest.FixtureRequest) -> Iterator[World]:
    return (WorldOfFunction(request.param) for _ in iter(int, 1))


def number_of_steps(world: World) -> int:
    steps = world.collect(1)
    world.check_done()
    assert {"before call", "after call"} <= set(steps.names)
    return steps.count


def test_owner_may_die_at_any_step(worlds: Iterator[World]) -> None:
    for at in range(number_of_steps(next(worlds))):
        world = next(worlds)
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.collect(2)
        world.check_done()


@pytest.mark.slow
def test_successor_may_die_at_any_step_too(worlds: Iterator[World]) -> None:
    for at in range(number_of_steps(next(worlds))):
        for then in range(0, 30, 3):
            world = next(worlds)
            with pytest.raises(CrashError):
                world.collect(1, Steps(at, crash))
            with suppress(CrashError):
                world.collect(2, Steps(then, crash))
            world.collect(3)
            world.check_done()


def test_owner_may_sleep_at_any_step_while_another_does_all_the_work(
    worlds: Iterator[World],
) -> None:
    for at in range(number_of_steps(next(worlds))):
        world = next(worlds)

        def overtake(world: World = world) -> None:
            world.collect(2)
            world.check_done()

        late(world, 1, Steps(at, overtake))
        world.collect(3)
        world.check_done()
