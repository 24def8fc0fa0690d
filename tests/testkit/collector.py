"""Doubles for tests of the collector: pipelines that follow a script, and run without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from flumeng.agent.collector.batch import Filtered, Intent, Pipeline, Work
from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.outcome import Outcome
from flumeng.agent.collector.ranges import Scale
from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import (
    Paced,
    Parts,
    Positions,
    Progress,
    Range,
    Reach,
    Standstill,
)
from flumeng.connectors.api.sink import TaskRevision, Written
from flumeng.connectors.journals.input import describe
from flumeng.control.zookeeper import Store
from tests.testkit.cluster import add_journal
from zkschema import paths

SECONDS_BETWEEN_CHANGES = 0.02
TASK = TaskRevision("web", "0", 1)


def register(store: Store, flow: str, *journals: str) -> None:
    """Make the records of these journals, unless they are there."""
    for name in journals:
        if not store.exists(paths.journal(name)):
            add_journal(store, name, flow, "n1")


class StillPositions:
    """Positions that never change; no task reads them."""

    def open(self, spec: FlowSpec) -> None: ...

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        raise NotImplementedError

    def leave_out(self, parts: Parts) -> None: ...

    def follow(self, leader_epochs: Mapping[str, int | None]) -> None: ...

    def refresh(self, partitions: Collection[str]) -> None: ...

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        raise NotImplementedError

    def describe(self, standstill: Standstill) -> str:
        return describe(standstill)

    def close(self) -> None: ...


@dataclass
class FakePositions(StillPositions):
    """Partitions that are there, with ``ends`` that stay."""

    ends: Mapping[str, int]

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {name: Reach("", self.ends[name]) for name in partitions if name in self.ends}


class BreakingError(Exception):
    """Raised by a batch: its whole job fails."""


class Restless:
    """Wraps a task's positions and reports changes of their ends all the time."""

    def __init__(self, positions: Positions, wake: Callable[[], None]) -> None:
        self._positions = positions
        self._wake = wake
        self.rests = positions.rests if isinstance(positions, Paced) else lambda: False
        self.rate = positions.rate if isinstance(positions, Paced) else lambda: 0
        self.open = positions.open
        self.of = positions.of
        self.refresh = positions.refresh
        self.probe = positions.probe
        self.describe = positions.describe
        threading.Thread(target=self._nag, daemon=True).start()

    def close(self) -> None:
        self._positions.close()

    def _nag(self) -> None:
        while True:
            time.sleep(SECONDS_BETWEEN_CHANGES)
            self._wake()


@dataclass(eq=False)
class ScriptedPipeline:
    """Records the batches that it is given; ``before_write`` may fail or wait."""

    spec: FlowSpec
    before_write: Callable[[Sequence[Range]], None] = lambda _: None
    roots: tuple[str, ...] = ()
    spare_roots: frozenset[str] = frozenset()
    shareable: bool = False
    intent: Intent | None = None
    trouble: str = ""
    filters: str = ""
    outdated: bool = False
    batches: list[tuple[Range, ...]] = field(default_factory=list)
    event_size: float | None = None
    made: Filtered = field(default_factory=Filtered)

    def event_bytes(self) -> float | None:
        return self.event_size

    def filtered(self) -> Filtered:
        return self.made

    def splits(self, ranges: Sequence[Range], scale: Scale) -> int:
        del scale
        return len(ranges)

    def joined(self, ranges: Sequence[Range]) -> dict[str, JoinedRange]:
        """Each line is an event: all is emitted at once."""
        ends = {piece.partition: Progress(piece.end, piece.end) for piece in ranges}
        return {piece.partition: JoinedRange(piece, ends[piece.partition], {}) for piece in ranges}

    def write(self, ranges: Sequence[Range]) -> list[Written]:
        """Called once a batch, from the thread of its slot."""
        self.before_write(ranges)
        self.batches.append(tuple(ranges))
        return [Written(sum(piece.events for piece in ranges))]


class ScriptedEngine:
    """Runs batches of scripted pipelines.

    For each job, ``jobs`` has the number of batches, ``events`` the number of events, ``slots`` the
    slot, and ``apart`` whether it was for a separate batch.
    """

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.events: list[int] = []
        self.slots: list[str] = []
        self.apart: list[bool] = []
        self.warm: list[Pipeline] = []
        self.cancelled: set[str] = set()
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def write(self, works: Sequence[Work], job: str, slot: str) -> list[Outcome]:
        del job
        with self._lock:
            self.slots.append(slot)
            self.jobs.append(len(works))
            self.apart.append(works[0].apart)
            self.events.append(sum(piece.events for work in works for piece in work.ranges))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return [_write(work) for work in works]
        finally:
            with self._lock:
                self.at_once -= 1

    def cancel(self, job: str) -> None:
        self.cancelled.add(job)

    def warm_up(self, pipeline: Pipeline) -> None:
        self.warm.append(pipeline)


def _write(work: Work) -> Outcome:
    assert isinstance(work.pipeline, ScriptedPipeline)
    try:
        return work.pipeline.write(work.ranges)
    except BreakingError:
        raise
    except Exception as error:
        return error
