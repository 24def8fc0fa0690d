"""A modelled discovery process: its tasks look at the broker, and list objects, with the code of
the real one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flumeng.agent.discovery.task import DiscoveryTask, SupersededError
from flumeng.config import parse_flow
from flumeng.connectors.api.finding import Finder, FindingTask
from flumeng.connectors.objects.finder import ObjectsFinder, Surroundings
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.platform.errors import FlumengError
from tests.testkit.simulation.broker import ModelFinder
from tests.testkit.simulation.bucket import BucketCleanup, BucketLister
from tests.testkit.simulation.child import END_OF_INPUT, ChildProcess
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.stepped_node import SteppedNode

LOOK_SECONDS = 4.0
RETRY_SECONDS = 0.5
FORGET_SECONDS = 10.0
MOST_WAITING = 12
NEVER = float("inf")


@dataclass
class _Run:
    wanted: Mapping[str, Any]
    said: dict[str, Any]
    task: DiscoveryTask | None = None
    due: float = 0.0


class Discovery(ChildProcess):
    """Has a session of its own. Its tasks take turns, and messages come in between."""

    def __init__(self, world: Cluster, parent: SteppedNode, role: str, name: str) -> None:
        super().__init__(world, parent, role, name)
        self.session = world.connect(name, fragile=world.queued)
        self._runs: dict[str, _Run] = {}
        self._answers: int | None = None
        self._is_ready = False

    def step(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self.send({"type": "ready", "address": f"{self.name}:1"})
        elif self.inbox:
            self._handle(self.inbox.popleft())
        elif due := [run for run in self._runs.values() if run.due <= self.world.now]:
            self._look(self.world.random.choice(due))
        self.due = min((run.due for run in self._runs.values()), default=NEVER)

    def wake(self) -> None:
        super().wake()
        for run in self._runs.values():
            run.due = min(run.due, self.world.now)

    def _look(self, run: _Run) -> None:
        run.due = self.world.now + LOOK_SECONDS
        state, seen = "running", 0
        try:
            run.task = run.task or self._task(run.wanted)
            run.task.discover()
        except SupersededError as error:
            self.say(f"{run.wanted['flow']}: {error}")
            state, seen, run.due = "stopped", error.seen, NEVER
        except FlumengError as error:
            self.say(f"{run.wanted['flow']} is looked at again: {error}")
            run.due = self.world.now + RETRY_SECONDS
            return
        run.said = _status(run.wanted, state, seen)
        self._report()

    def _handle(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "configure":
            self._answers = message["number"]
            self._configure(message["tasks"])
        else:
            assert message["type"] == "stop" or message is END_OF_INPUT
            self.exit(0)

    def _configure(self, tasks: list[Mapping[str, Any]]) -> None:
        wanted = {task["flow"]: task for task in tasks if task["state"] != "draining"}
        self._runs = {
            flow: self._runs[flow]
            if flow in self._runs and self._runs[flow].wanted == task
            else _Run(task, _status(task, "starting", 0))
            for flow, task in wanted.items()
        }
        self._report()

    def _task(self, wanted: Mapping[str, Any]) -> DiscoveryTask:
        assert self.session is not None
        flow = wanted["flow"]
        task = FindingTask(flow, wanted["epoch"])
        sources = parse_flow(wanted["spec"]).partitioned
        finders = [self._finder(part.options, task) for part in sources]
        return self.world.parts.discovery(
            self.session,
            flow,
            wanted["epoch"],
            finders,
            clock=self.world.clock,
            forget_seconds=FORGET_SECONDS,
        )

    def _finder(self, options: object, task: FindingTask) -> Finder:
        world = self.world
        if not isinstance(options, ObjectsSource):
            return ModelFinder(world.disks.broker, task.flow)
        assert self.session is not None
        bucket = world.disks.bucket(task.flow)
        on_removed = partial(world.checks.queues.on_removed, task.flow)
        around = Surroundings(
            world.clock,
            bucket.now_us,
            lambda _: BucketLister(bucket),
            lambda source: BucketCleanup(bucket, source, on_removed),
            partial(world.parts.queue_log.take, new_id=world.new_queue_id),
        )
        return ObjectsFinder(options, self.session, task, around, most_waiting=MOST_WAITING)

    def _report(self) -> None:
        tasks = {f"{flow}/{run.wanted['task']}": run.said for flow, run in self._runs.items()}
        self.report({"type": "status", "answers": self._answers, "tasks": tasks})


def _status(wanted: Mapping[str, Any], state: str, seen: int) -> dict[str, Any]:
    return {
        "epoch": wanted["epoch"],
        "revision": wanted["revision"],
        "state": state,
        "error": None,
        "epoch_seen": seen,
    }
