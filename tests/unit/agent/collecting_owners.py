"""A flow of two journals under owners of its task that die or sleep at any step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flumeng.agent.collector import intents
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch, Filtered, Intent
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize, Scale
from flumeng.config import FlowSpec, parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import Written
from flumeng.platform.errors import ConflictError, UnavailableError
from tests.testkit.cluster import new_cluster
from tests.testkit.collector import FakePositions, register
from tests.testkit.owner_steps import SteppingStore, Steps
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths
from zkschema.bootstrap import flow_folders

FLOW, TASK = "web", "collect.0"
JOURNALS = {"web.n1.0.aaaaaaaa": 4, "web.n2.0.bbbbbbbb": 3}


@dataclass
class UnrunPipeline:
    """The attributes of a pipeline that a task reads while a test writes its batches."""

    spec: FlowSpec
    intent: Intent | None
    sink: Any = None
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

    def splits(self, _ranges: Sequence[Range], _scale: Scale) -> int:
        return 1

    def joined(self, _ranges: Sequence[Range]) -> dict[str, JoinedRange]:
        return {}


class World(ABC):
    """One cluster and one target, with any number of owners, also at the same time."""

    intent: Intent

    def __init__(self, text: str) -> None:
        self.spec = parse_flow(text)
        self.tree = FakeTree()
        store = new_cluster(self.tree)
        self.tree.znodes[f"/flows/{FLOW}"] = type(self.tree.znodes["/"])(b"")
        for folder in flow_folders(FLOW):
            if not store.exists(folder):
                self.tree.znodes[str(folder)] = type(self.tree.znodes["/"])(b"")
        register(store, FLOW, *JOURNALS)

    @abstractmethod
    def write(self, sink: Any, batch: Batch, events: list[str], steps: Steps) -> Written: ...

    @abstractmethod
    def rows(self) -> list[str]:
        """The rows in the target."""

    def sink(self) -> Any:
        """A new owner's sink for the target, if it has one."""
        return None

    def collect(self, epoch: int, steps: Steps | None = None) -> Steps:
        """Run an owner until all is acked or ``steps`` ends it."""
        steps = steps or Steps()
        store = SteppingStore(self.tree, steps)
        sink = self.sink()
        task = ClaimedTask(
            Assignment(FLOW, TASK, epoch, 1, "", tuple(JOURNALS)),
            store,
            Publisher(store, gap_seconds=0.0),
            UnrunPipeline(self.spec, self.intent, sink),
            FakePositions(JOURNALS),
            size=BatchSize(4 + epoch % 2),
        )
        while not task.caught_up:
            if task.may_start and task.backlog(eager=True).events:
                batch = task.start()
                assert batch
                events = [f"{r.partition} {n}" for r in batch.ranges for n in range(r.start, r.end)]
                task.settle(batch, [self.write(sink, batch, events, steps)])
            elif task.running:
                task.commit()
        return steps

    def check_done(self) -> None:
        everything = [f"{name} {seq}" for name, end in JOURNALS.items() for seq in range(end)]
        assert Counter(self.rows()) == Counter(everything)
        store = FakeStore(self.tree)
        acks = {name: store.read(paths.ack(FLOW, "main", name)) for name in JOURNALS}
        assert {name: ack.value.offset for name, ack in acks.items() if ack} == JOURNALS
        decided = intents.read(store, FLOW, TASK)
        assert decided is not None
        assert not decided.ranges


def late(world: World, epoch: int, steps: Steps) -> None:
    """Run an owner that may be overtaken: fencing ends it."""
    with suppress(ConflictError, UnavailableError):
        world.collect(epoch, steps)
