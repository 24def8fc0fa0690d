"""Builds the filters of a flow from its stages, and routes the filtered events to sinks and
branches. Each event is marked once for all routes; the first stage of a route drops the marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from flumeng.config import registry
from flumeng.config.component import DROP, KEEP, Component, FilterOptions
from flumeng.config.stages import BranchStage, FilterStage, FlowStage, SinkStage, following
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters import on_error
from flumeng.filters.conditional import ConditionalFilter
from flumeng.filters.contract import Filter
from flumeng.filters.marks import Marked, Marks, TakeStage, Unmarked
from flumeng.filters.on_error import FAILED, MarkFailures

if TYPE_CHECKING:
    from flumeng.filters.refreshed_table import RefreshedTable

BRANCH_MARK = "_flumeng_branch_"


@dataclass(frozen=True)
class Step:
    """A filter with its condition, at the path ``place`` in the flow. ``marks_failures``: failed
    events are dropped, with ``drops``, or become dead letters."""

    filter: Filter
    place: str = ""
    notes_errors: bool = False
    reshapes: bool = False
    marks_failures: bool = False
    drops: bool = False

    @classmethod
    def of(cls, part: Component[FilterOptions], path: str = "") -> Step:
        options = part.options
        return cls(
            _made(part),
            path,
            options.notes_errors,
            options.reshapes,
            marks_failures=part.on_error != KEEP,
            drops=part.on_error == DROP,
        )

    @property
    def identified(self) -> bool:
        return self.filter.identified

    @property
    def tables(self) -> Sequence[RefreshedTable]:
        return self.filter.tables

    def mark(self, batch: LazyBatch) -> LazyBatch:
        """Apply the filter; add the column ``FAILED`` when ``marks_failures`` is set."""
        return self.filter.apply(batch)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        """Apply the filter; drop failed events when ``marks_failures`` is set."""
        marked = self.mark(batch)
        return on_error.processed(marked) if self.marks_failures else marked


def _made(part: Component[FilterOptions]) -> Filter:
    cls: Any = registry.get("filter", part.name).implementation_class()
    made: Filter = cls(part.options)
    if part.on_error != KEEP:
        made = MarkFailures(made)
    if part.when is None:
        return made
    if hasattr(made, "under"):  # it does more than change each event where it is
        return cast("Filter", made.under(part.when))
    return ConditionalFilter(made, part.when, part.options.made_again())


@dataclass(frozen=True)
class Way:
    """A route for the events that ``which`` selects, or for all when it is None. It leads into
    ``sinks``, to the dead letters of the filter at ``letters``, or into a further ``segment``."""

    which: Marked | Unmarked | None
    sinks: tuple[SinkStage, ...] = ()
    letters: str = ""
    segment: Segment | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """A sequence of filters, ``steps``, and the routes after them, ``ways``. ``columns``: those by
    which routes select events, added by ``marks`` or the last step. ``entry``: the number of the
    stage before it, if any; ``branch``: the name of the branch that begins here, if any."""

    entry: int | None
    branch: str
    steps: tuple[Step, ...]
    marks: Marks
    columns: tuple[str, ...]
    ways: tuple[Way, ...]

    @property
    def loses(self) -> bool:
        """Whether an event may match none of the routes."""
        return bool(self.ways) and all(isinstance(way.which, Marked) for way in self.ways)

    def walk(self) -> Iterator[Segment]:
        yield self
        for way in self.ways:
            if way.segment is not None:
                yield from way.segment.walk()

    def through(self, batch: LazyBatch) -> LazyBatch:
        """Apply the steps; events that become dead letters at the end are still included."""
        for step in self.steps:
            batch = step.apply(batch) if step.drops else step.mark(batch)
        return batch

    def behind(self, batch: LazyBatch) -> LazyBatch:
        """Apply all filters before the flow splits into sinks and branches."""
        for step in self.steps:
            batch = step.apply(batch)
        rest = self.ways[-1].segment if self.ways and self.ways[0].letters else None
        return batch if rest is None else rest.behind(batch)

    def take(self, marked: LazyBatch, way: Way) -> LazyBatch:
        if not self.columns:
            return marked
        schema = pa.schema([f for f in marked.schema if f.name not in self.columns])
        return marked.arrow(TakeStage(way.which, tuple(schema.names)), schema)


def segments_of(
    stages: tuple[FlowStage, ...], make: Callable[[Component[FilterOptions], str], Step] = Step.of
) -> Segment:
    """Return the segments of a flow as a tree. Filters come from ``make``, which may raise."""
    return _segment(stages, None, "", make)


def _segment(
    stages: tuple[FlowStage, ...],
    entry: int | None,
    branch: str,
    make: Callable[[Component[FilterOptions], str], Step],
) -> Segment:
    steps: list[Step] = []
    behind = following(stages, entry)
    while behind and isinstance(filter_ := behind[0], FilterStage):
        steps.append(make(filter_.part, filter_.place))
        if filter_.makes_dead_letters:
            letters = Way(Marked(FAILED), letters=filter_.place)
            rest = _segment(stages, filter_.number, "", make)
            others = Way(Unmarked((FAILED,)), segment=rest)
            return Segment(entry, branch, tuple(steps), Marks({}), (FAILED,), (letters, others))
        behind = following(stages, filter_.number)
    sinks = tuple(stage for stage in behind if isinstance(stage, SinkStage))
    entries = [stage for stage in behind if isinstance(stage, BranchStage)]
    marks = _branch_marks(entries)
    parts = [
        Way(
            _which(stage, number, marks), segment=_segment(stages, stage.number, stage.branch, make)
        )
        for number, stage in enumerate(entries)
    ]
    ways = (Way(None, sinks), *parts) if sinks else tuple(parts)
    columns = tuple(marks.conditions)
    return Segment(entry, branch, tuple(steps), marks, columns, ways)


def _branch_marks(entries: Sequence[BranchStage]) -> Marks:
    conditions = {
        f"{BRANCH_MARK}{number}": stage.part.when
        for number, stage in enumerate(entries)
        if stage.part.when is not None
    }
    return Marks(conditions)


def _which(entry: BranchStage, number: int, marks: Marks) -> Marked | Unmarked | None:
    if entry.part.otherwise:
        return Unmarked(tuple(marks.conditions)) if marks.conditions else None
    return None if entry.part.when is None else Marked(f"{BRANCH_MARK}{number}")
