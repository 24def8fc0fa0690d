"""Plans a batch with several outputs so that each event is read and filtered once. Arrow outputs
share one run, which holds the batch in memory; for Spark SQL outputs, Spark caches the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from flumeng.agent.collector.executor_units import read_rows
from flumeng.agent.collector.spark_reports import StageReports
from flumeng.connectors.api.ranged import Split
from flumeng.connectors.api.sink import Row
from flumeng.events.lazy_batch import BRANCH_SCHEMA, Branches, Fused, LazyBatch, Stage


@dataclass(frozen=True)
class Leaf:
    """One output: ``batch`` with all stages up to the last stage of sink number ``sink``."""

    sink: int
    batch: LazyBatch


@dataclass(frozen=True)
class Fork:
    """Several ``outputs`` that share ``batch``. ``plan`` plans these outputs on a batch. Those of
    ``of`` only show which stages follow: Spark keeps nothing for them. ``counting`` returns the
    stages that count the batch when all outputs are Arrow."""

    batch: LazyBatch
    plan: Callable[[LazyBatch], tuple[Leaf | Fork, ...]]
    counting: Callable[[], tuple[Stage, ...]]
    outputs: tuple[Leaf | Fork, ...] = ()

    @classmethod
    def of(
        cls,
        batch: LazyBatch,
        plan: Callable[[LazyBatch], tuple[Leaf | Fork, ...]],
        counting: Callable[[], tuple[Stage, ...]] = lambda: (),
    ) -> Fork:
        return cls(batch, plan, counting, plan(replace(batch, functions=None)))

    def on(self, batch: LazyBatch) -> Fork:
        return replace(self, batch=batch, outputs=self.plan(batch))


@dataclass(frozen=True)
class Run:
    """A batch up to the last stage of ``sinks``; with several sinks it yields BRANCH_SCHEMA."""

    batch: LazyBatch
    sinks: tuple[int, ...]

    def rows(self, results: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
        if len(self.sinks) == 1:
            yield self.sinks[0], list(results)
            return
        for row in results:
            yield row["branch"], list(read_rows(row["rows"]))


@dataclass(frozen=True)
class Plan:
    """The runs of a batch. ``splits``: the ranges of each split. ``cached``: batches shared by
    several runs; a batch derived from another comes after it. ``reports``: of stages in Spark."""

    splits: tuple[Split, ...]
    runs: tuple[Run, ...]
    cached: tuple[LazyBatch, ...] = ()
    reports: StageReports | None = None

    @classmethod
    def of(cls, splits: tuple[Split, ...], fork: Fork, reports: StageReports | None = None) -> Plan:
        cached: list[LazyBatch] = []
        return cls(splits, tuple(_runs(fork, cached)), tuple(cached), reports)

    @property
    def preparable(self) -> bool:
        """Whether later batches may reuse the plan. Not with cached DataFrames: Spark identifies
        these by their plan alone, whichever events they hold."""
        return not self.cached and all(run.batch.action is None for run in self.runs)

    def release(self, run: str = "") -> None:
        for batch in reversed(self.cached):
            batch.release()
        if self.reports is not None:
            self.reports.release(run)


@dataclass(frozen=True)
class _Tail:
    """Arrow stages up to the end of ``sinks``, which yield ``schema``."""

    stages: tuple[Stage, ...]
    schema: pa.Schema
    sinks: tuple[int, ...]

    def behind(self, batch: LazyBatch) -> Run:
        for stage in self.stages:
            batch = batch.arrow(stage, self.schema)
        return Run(batch, self.sinks)


def _runs(part: Leaf | Fork, cached: list[LazyBatch]) -> Iterator[Run]:
    if isinstance(part, Leaf):
        yield Run(part.batch, (part.sink,))
        return
    whole = _tail(part, part.batch)
    if whole is not None:
        yield whole.behind(part.batch)
        return
    if len(part.outputs) > 1:
        cached.append(part.batch.cached())
        part = part.on(cached[-1])
    else:
        part = part.on(part.batch)
    arrow = []
    for output in part.outputs:
        tail = _tail(output, part.batch)
        if tail is not None:
            arrow.append(tail)
        else:
            yield from _runs(output, cached)
    if arrow:
        yield _joined(arrow).behind(part.batch)


def _tail(part: Leaf | Fork, shared: LazyBatch) -> _Tail | None:
    """Return the Arrow stages after ``shared``; None when Spark SQL or an action follows it."""
    before = part.batch.after(shared)
    if before is None or isinstance(part, Leaf):
        sinks = (part.sink,) if isinstance(part, Leaf) else ()
        return None if before is None else _Tail(before, part.batch.schema, sinks)
    tails = [_tail(output, part.batch) for output in part.outputs]
    if None in tails:
        return None
    joined = _joined([tail for tail in tails if tail is not None])
    return replace(joined, stages=(*before, *part.counting(), *joined.stages))


def _joined(tails: Sequence[_Tail]) -> _Tail:
    if len(tails) == 1:
        return tails[0]
    branches = ((t.sinks[0] if len(t.sinks) == 1 else None, Fused(t.stages)) for t in tails)
    sinks = tuple(sink for tail in tails for sink in tail.sinks)
    return _Tail((Branches(tuple(branches)),), BRANCH_SCHEMA, sinks)
