"""One task before a store in memory, with a pipeline that follows a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.measures import Measures
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.status import Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.config import FlowSpec, parse_flow
from flumeng.connectors.api.ranged import Reach
from flumeng.control.zookeeper import tree
from flumeng.platform.metrics import table
from tests.testkit.cluster import add_flow
from tests.testkit.collector import (
    Restless,
    ScriptedEngine,
    ScriptedPipeline,
    StillPositions,
    register,
)
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.waiting import PATIENCE_SECONDS
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

JOURNAL = "web.n1.0.00000000"


def spec(delivery: str = "at-least-once", seconds: float = 0.0) -> FlowSpec:
    return parse_flow(
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
        f"delivery: {delivery}, batch: {{seconds: {seconds}, events: 100}}, sinks: [noop]}}"
    )


def once() -> FlowSpec:
    return parse_flow(
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], delivery: exactly-once, "
        "batch: {seconds: 0, events: 100}, sinks: [files: {path: /lake}]}"
    )


@dataclass
class World(StillPositions):
    safe: dict[str, int] = field(default_factory=lambda: {JOURNAL: 0})
    closed: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)
    store: ScriptedStore = field(default_factory=ScriptedStore)
    statuses: list[Status] = field(default_factory=list)
    runners: list[Runner] = field(default_factory=list)
    scheduler: Scheduler = field(default_factory=Scheduler)
    measures: Measures = field(default_factory=Measures)
    jobs: Jobs = field(default_factory=lambda: Jobs(ScriptedEngine(), 2, on_stuck=pytest.fail))
    opened: list[FlowSpec] = field(default_factory=list)
    resting: bool = False
    limit: int = 0

    def rests(self) -> bool:
        return self.resting

    def rate(self) -> int:
        return self.limit

    def open(self, spec: FlowSpec) -> None:
        self.opened.append(spec)

    def __post_init__(self) -> None:
        self.store.on_session(lambda _: self.scheduler.wake_all())
        tree.init(self.store)
        add_flow(self.store)
        register(self.store, "web", JOURNAL)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {
            name: Reach(
                "",
                self.safe[name],
                self.held.get(name, 0),
                closed=name in self.closed,
                full=name in self.full,
            )
            for name in partitions
            if name in self.safe
        }

    def run(
        self,
        pipeline: ScriptedPipeline,
        epoch: int = 1,
        report: Callable[[str, Status], None] | None = None,
        handoff: int = 0,
    ) -> Runner:
        return self.run_built(lambda _: pipeline, epoch, report, handoff)

    def run_built(
        self,
        build: Callable[[Assignment], ScriptedPipeline],
        epoch: int = 1,
        report: Callable[[str, Status], None] | None = None,
        handoff: int = 0,
    ) -> Runner:
        around = Surroundings(
            store=self.store,
            publisher=Publisher(self.store),
            scheduler=self.scheduler,
            jobs=self.jobs,
            build=build,
            positions=lambda wake: Restless(self, wake),
            report=report or self.report,
            measures=self.measures,
        )
        runner = Runner(replace(assignment(epoch), handoff=handoff), around)
        self.runners.append(runner)
        runner.start()
        return runner

    def report(self, _key: str, status: Status) -> None:
        self.statuses.append(status)

    def ack(self) -> int:
        found = self.store.read(paths.ack("web", CURSOR_MAIN, JOURNAL))
        return found.value.offset if found else 0

    def counted(self, wanted: table.Metric) -> dict[tuple[str, ...], object]:
        readings = self.measures.readings()
        return {labels: value for metric, value, labels in readings if metric is wanted}

    def states(self) -> list[str]:
        return [status.state for status in self.statuses]


def assignment(epoch: int = 1) -> Assignment:
    return Assignment("web", "collect.0", epoch, 1, "", (JOURNAL,))


@contextmanager
def running() -> Iterator[World]:
    """A world whose tasks end with the test."""
    world = World()
    yield world
    for runner in world.runners:
        runner.cancel()
        assert runner.join(PATIENCE_SECONDS)


def waited(event: threading.Event) -> None:
    event.wait(PATIENCE_SECONDS)
