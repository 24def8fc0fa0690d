"""Functions that are given batches by number, under owners that die or sleep at any step.

Steps are those on ZooKeeper, and the beginning, the middle and the end of each call. Whatever
happens, a number comes with one set of events only, so that a function that remembers the last
number does each event once, also in a flow that delivers at least once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from flumeng.collector import intents
from flumeng.collector.publisher import Publisher
from flumeng.collector.ranges import BatchSize
from flumeng.collector.step_testing import CrashError, SteppingStore, Steps, crash
from flumeng.collector.task import Assignment, Task
from flumeng.collector.testing import register
from flumeng.collector.work import Filtered, Intent
from flumeng.errors import ConflictError, UnavailableError
from flumeng.inputs import Range, Reach
from flumeng.inputs.lines.joined import JoinedRange
from flumeng.sinks import Written
from flumeng.sinks.python import BatchNumber, call
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
delivery: %s
sinks: [{python: {function: "company.sinks:store", idempotent: true}}]
"""


@dataclass
class FunctionPipeline:
    spec: FlowSpec
    roots: tuple[str, ...] = ()
    shareable: bool = False
    intent: Intent | None = "before"
    trouble: str = ""

    def event_bytes(self) -> None:
        return None

    def filtered(self) -> Filtered:
        return Filtered()

    def splits(self, _ranges: Sequence[Range]) -> int:
        return 1

    def joined(self, _ranges: Sequence[Range]) -> dict[str, JoinedRange]:
        return {}


class FakePositions:
    def of(self, journals: Any) -> dict[str, Reach]:
        return {name: Reach("", JOURNALS[name]) for name in journals}

    def refresh(self, journals: Any) -> None: ...

    def close(self) -> None: ...


@dataclass
class Warehouse:
    """What a careful function fills: it does nothing for a number that it has had."""

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


class World:
    def __init__(self, delivery: str) -> None:
        self.spec = parse_flow(FLOW_TEXT % delivery)
        self.warehouse = Warehouse()
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
        task = Task(
            Assignment(FLOW, TASK, epoch, 1, "", tuple(JOURNALS)),
            store,
            Publisher(store, gap_seconds=0.0),
            FunctionPipeline(self.spec),
            FakePositions(),
            size=BatchSize(4 + epoch % 2),
        )

        def function(rows: Any, number: BatchNumber) -> None:
            self.warehouse.store(steps, rows, number)

        while not task.caught_up:
            if task.may_start and task.look(eager=True).events:
                batch = task.start()
                assert batch
                rows: Any = [
                    f"{r.partition} {n}" for r in batch.ranges for n in range(r.start, r.end)
                ]
                call("store", function, {}, batch.identity, rows)
                task.settle(batch, [Written(0)])
            elif task.running:
                task.commit()
        return steps

    def check_done(self) -> None:
        everything = [f"{name} {seq}" for name, end in JOURNALS.items() for seq in range(end)]
        assert Counter(self.warehouse.rows) == Counter(everything)
        store = FakeStore(self.tree)
        acks = {name: store.read(paths.ack(FLOW, "main", name)) for name in JOURNALS}
        assert {name: ack.value.offset for name, ack in acks.items() if ack} == JOURNALS
        decided = intents.read(store, FLOW, TASK)
        assert decided is not None
        assert not decided.ranges


@pytest.fixture(params=["at-least-once", "exactly-once"])
def worlds(request: pytest.FixtureRequest) -> Iterator[World]:
    return (World(request.param) for _ in iter(int, 1))


def late(world: World, epoch: int, steps: Steps) -> None:
    """An owner that may be overtaken: being fenced ends it."""
    with suppress(ConflictError, UnavailableError):
        world.collect(epoch, steps)


def number_of_steps(world: World) -> int:
    steps = world.collect(1)
    world.check_done()
    assert {"before call", "after call"} <= set(steps.names)
    return steps.count


def test_an_owner_may_die_at_any_step(worlds: Iterator[World]) -> None:
    for at in range(number_of_steps(next(worlds))):
        world = next(worlds)
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.collect(2)
        world.check_done()


def test_its_successor_may_die_at_any_step_too(worlds: Iterator[World]) -> None:
    for at in range(number_of_steps(next(worlds))):
        for then in range(0, 30, 3):
            world = next(worlds)
            with pytest.raises(CrashError):
                world.collect(1, Steps(at, crash))
            with suppress(CrashError):
                world.collect(2, Steps(then, crash))
            world.collect(3)
            world.check_done()


def test_an_owner_may_sleep_at_any_step_while_another_does_all_the_work(
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
