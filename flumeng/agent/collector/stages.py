"""A flow's filters and outputs as a task runs them, and counts of their events. Events are counted
only in Arrow stages that exist anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from flumeng.agent.collector.batch import Filtered
from flumeng.agent.collector.output_plans import Fork, Leaf
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reports import Reports
from flumeng.events.attributes import has_reasons, parse_errors
from flumeng.events.lazy_batch import LazyBatch, Stage
from flumeng.filters import on_error
from flumeng.filters.marks import Unmarked
from flumeng.filters.refreshed_table import RefreshedTable
from flumeng.filters.segments import Segment, Way

COUNTED = READ, PASSED, ERRORS, UNTAKEN = "read", "passed", "errors", "untaken"
FAILED = "failed at "
"""Prefix of the counts of events that a filter dropped because it could not process them."""


@dataclass(frozen=True)
class Counted:
    """Counts of a segment. ``dropped``: None when not counted. ``errors``: events that its filters
    could not process. ``failed``: events dropped for that reason, by the filter's place."""

    read: int
    dropped: int | None
    errors: int
    failed: Mapping[str, int]


class FilterCounts:
    """Counts the events of one segment of a flow in a task."""

    def __init__(self, given: Reports, segment: Segment) -> None:
        self._reports = given
        self._inner = segment.entry is not None
        self._segment = segment.entry
        self._steps = segment.steps
        self._reshapes = any(step.reshapes for step in segment.steps)
        self._failing = [step.place for step in segment.steps if step.drops]
        self._counts_end = not segment.steps
        self._before = self._values()

    def through(self, batch: LazyBatch) -> LazyBatch:
        """Run the filters. Count events at the start, around filters that note errors, and at
        drops. Events marked by the last filter are still in the batch."""
        if self._steps or (self._inner and batch.in_arrow):
            batch = counted(batch, self._count(READ))
        for step in self._steps:
            if step.notes_errors and has_reasons(batch.schema):
                batch = step.mark(counted(batch, self._count(ERRORS, _errors_before)))
                batch = counted(batch, self._count(ERRORS, parse_errors))
            else:
                batch = step.mark(batch)
            if step.drops:
                dropping = self._count(FAILED + step.place, on_error.failures)
                batch = on_error.processed(counted(batch, dropping))
        return batch

    def at_end(self, batch: LazyBatch) -> tuple[Stage, ...]:
        """Return the stages that count the filtered events; none without filters."""
        if not self._steps:
            return ()
        self._counts_end = not (batch.shuffled or self._reshapes)
        return (self._count(PASSED),)

    def untaken(self, of: Callable[[pa.RecordBatch], int]) -> Stage:
        return self._count(UNTAKEN, of)

    def take(self) -> Counted:
        """Return the counts since the last call; ``dropped`` is None if filters group rows."""
        before, self._before = self._before, self._values()
        counts = {what: now - before[what] for what, now in self._before.items()}
        passed_by = max(0, counts[READ] - counts[PASSED]) if self._steps else 0
        return Counted(
            counts[READ],
            passed_by + counts[UNTAKEN] if self._counts_end else None,
            counts[ERRORS],
            {path: counts[FAILED + path] for path in self._failing},
        )

    def _count(self, what: str, of: Callable[[pa.RecordBatch], int] | None = None) -> Stage:
        return _Count((self._segment, what), of or _rows)

    def _values(self) -> Mapping[str, int]:
        counts = self._reports.counts
        kinds = (*COUNTED, *(FAILED + path for path in self._failing))
        return {what: counts.get((self._segment, what), 0) for what in kinds}


def counted(batch: LazyBatch, *stages: Stage) -> LazyBatch:
    for stage in stages:
        batch = batch.arrow(stage, batch.schema)
    return batch


@dataclass(frozen=True)
class Outputs:
    """``sink`` connects a batch to a sink, given by number; ``letters`` connects it to dead
    letters, given the place of the failed filter."""

    sink: Callable[[LazyBatch, int], LazyBatch]
    letters: Callable[[LazyBatch, str], Leaf]


class Stages:
    def __init__(self, root: Segment, given: Reports) -> None:
        self._root = root
        self._counts = {segment: FilterCounts(given, segment) for segment in root.walk()}
        self.steps = [step for segment in root.walk() for step in segment.steps]

    @property
    def tables(self) -> list[RefreshedTable]:
        return [table for step in self.steps for table in step.tables]

    def behind(self, batch: LazyBatch) -> LazyBatch:
        """Return ``batch`` as it is after the filters, before the flow branches."""
        return self._root.behind(batch)

    def through(self, batch: LazyBatch) -> LazyBatch:
        """Run ``batch`` through the filters up to the first branching."""
        return self._counts[self._root].through(batch)

    def fork(self, batch: LazyBatch, outputs: Outputs) -> Fork:
        return self._fork(self._root, outputs, batch)

    def filtered(self) -> Filtered:
        counted = [(segment.branch, counts.take()) for segment, counts in self._counts.items()]
        dropped = [counts.dropped for _, counts in counted]
        return Filtered(
            None if None in dropped else sum(filter(None, dropped)),
            sum(counts.errors for _, counts in counted),
            {branch: counts.read for branch, counts in counted if branch},
            {path: count for _, counts in counted for path, count in counts.failed.items()},
        )

    def _fork(self, segment: Segment, outputs: Outputs, batch: LazyBatch) -> Fork:
        counts = self._counts[segment]
        in_arrow = batch.in_arrow
        if in_arrow:
            batch = counted(batch, *counts.at_end(batch))
        marked = segment.marks.mark(batch)
        if segment.marks.conditions and not in_arrow:
            marked = counted(marked, *counts.at_end(marked))
        if segment.loses:
            marked = counted(marked, counts.untaken(Unmarked(segment.columns)))
        is_counted = in_arrow or bool(segment.marks.conditions)
        return Fork.of(
            marked,
            lambda marked: tuple(
                output
                for way in segment.ways
                for output in self._outputs(way, outputs, segment.take(marked, way))
            ),
            lambda: () if is_counted else counts.at_end(marked),
        )

    def _outputs(self, way: Way, outputs: Outputs, batch: LazyBatch) -> Iterator[Leaf | Fork]:
        if way.segment is not None:
            yield self._fork(way.segment, outputs, self._counts[way.segment].through(batch))
        if way.letters:
            yield outputs.letters(batch, way.letters)
        for stage in way.sinks:
            yield Leaf(stage.sink, outputs.sink(batch, stage.sink))


@dataclass(frozen=True)
class _Count:
    """A stage that counts events and passes them on; a split that fails is not counted."""

    key: tuple[int | None, str]
    of: Callable[[pa.RecordBatch], int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in batches:
            count += self.of(batch)
            yield batch
        if count:
            reports.count({self.key: count})


def _rows(batch: pa.RecordBatch) -> int:
    return int(batch.num_rows)


def _errors_before(batch: pa.RecordBatch) -> int:
    return -parse_errors(batch)
