"""The filters, sinks and branches of a flow as a tree of segments, made once for a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flumeng.agent.collector.filter_counts import FilterCounts
from flumeng.agent.collector.forks import Fork, Leaf
from flumeng.agent.collector.work import Filtered
from flumeng.config.branch import Located, loses
from flumeng.config.component import DEAD_LETTER, DROP, Component, FilterOptions
from flumeng.connectors.ranged.accumulator import Accumulator
from flumeng.events.lazy_batch import LazyBatch, Stage
from flumeng.filters import on_error
from flumeng.filters.branch_router import BranchRouter
from flumeng.filters.contract import Filter
from flumeng.filters.making import marking
from flumeng.filters.marks import Unmarked


@dataclass(frozen=True)
class Outputs:
    """What ends a plan. ``sink``: a batch through the stage of the sink with a number; ``letters``:
    events that the filter at a place could not process, as dead letters."""

    sink: Callable[[LazyBatch, int], LazyBatch]
    letters: Callable[[LazyBatch, str], Leaf]


@dataclass(frozen=True)
class Segment:
    """``steps`` in a row; behind them the sinks with the numbers ``sinks``, and ``branches``.
    ``branch``: its name, when it takes events by a condition."""

    steps: tuple[Filter, ...]
    counts: FilterCounts
    sinks: tuple[int, ...]
    router: BranchRouter
    branches: tuple[Segment | LetterSegment, ...]
    loses: bool
    branch: str = ""

    def walk(self) -> Iterator[Segment | LetterSegment]:
        yield self
        for branch in self.branches:
            yield from branch.walk()

    def through(self, batch: LazyBatch) -> LazyBatch:
        """``batch`` through the filters of this segment."""
        return self.counts.through(batch, self.steps)

    def behind(self, batch: LazyBatch) -> LazyBatch:
        """What its filters leave of ``batch``."""
        return self.through(batch)

    def fork(self, batch: LazyBatch, outputs: Outputs) -> Fork:
        """What becomes of a batch behind the filters of this segment."""
        in_arrow = bool(batch.pending)
        if in_arrow:
            batch = _counted(batch, self.counts.at_end(batch))
        marked = self.router.mark(batch)
        if self.router.marks and not in_arrow:
            marked = _counted(marked, self.counts.at_end(marked))
        if self.loses:
            untaken = self.counts.untaken(Unmarked(self.router.marks))
            marked = _counted(marked, (untaken,))
        is_counted = in_arrow or bool(self.router.marks)
        return Fork.of(
            marked,
            lambda marked: (
                *self._leaves(self.router.all_of(marked), outputs),
                *(
                    branch.fork(branch.through(self.router.branch_of(marked, number)), outputs)
                    for number, branch in enumerate(self.branches)
                ),
            ),
            lambda: () if is_counted else self.counts.at_end(marked),
        )

    def _leaves(self, batch: LazyBatch, outputs: Outputs) -> Iterator[Leaf]:
        for sink in self.sinks:
            yield Leaf(sink, outputs.sink(batch, sink))


@dataclass(frozen=True)
class LetterSegment:
    """``steps`` in a row, of which the last one is the filter at ``place``. What that cannot
    process becomes dead letters, all else goes into ``rest``."""

    steps: tuple[Filter, ...]
    counts: FilterCounts
    place: str
    rest: Segment | LetterSegment
    branch: str = ""

    def walk(self) -> Iterator[Segment | LetterSegment]:
        yield self
        yield from self.rest.walk()

    def through(self, batch: LazyBatch) -> LazyBatch:
        """As of ``Segment``; events are marked by the last filter."""
        return self.counts.through(batch, self.steps)

    def behind(self, batch: LazyBatch) -> LazyBatch:
        """As of ``Segment``; of ``rest`` too."""
        return self.rest.behind(on_error.processed(self.through(batch)))

    def fork(self, marked: LazyBatch, outputs: Outputs) -> Fork:
        """As of ``Segment``."""
        return Fork.of(
            _counted(marked, self.counts.at_end(marked)),
            lambda marked: (
                outputs.letters(on_error.failed(marked), self.place),
                self.rest.fork(self.rest.through(on_error.processed(marked)), outputs),
            ),
        )


def _counted(batch: LazyBatch, stages: Sequence[Stage]) -> LazyBatch:
    """``batch`` through stages that change nothing."""
    for stage in stages:
        batch = batch.arrow(stage, batch.schema)
    return batch


def tree_of(root: Located, counts: Accumulator[int], task: str) -> Segment | LetterSegment:
    """The tree of a flow. Raises what ``marking`` raises."""
    return _TreeBuilder(root, counts, task).segment(root, 0)


class _TreeBuilder:
    """One pass over a flow, which numbers its sinks."""

    def __init__(self, root: Located, counts: Accumulator[int], task: str) -> None:
        self._numbers = iter(range(sum(len(one.segment.sinks) for one in root.walk())))
        self._counts = counts
        self._task = task

    def segment(self, where: Located, first: int) -> Segment | LetterSegment:
        """From the filter with the number ``first`` on."""
        of = where.segment
        filters = of.filters[first:]
        failing = [number for number, part in enumerate(filters) if part.on_error == DEAD_LETTER]
        branch = "" if first else where.name
        last = failing[0] if failing else len(filters) - 1
        steps, counts = self._steps(where, first, filters[: last + 1])
        if failing:
            return LetterSegment(
                steps,
                counts,
                _place(where, first + last, filters[last]),
                self.segment(where, first + last + 1),
                branch,
            )
        return Segment(
            steps,
            counts,
            tuple(next(self._numbers) for _ in of.sinks),
            BranchRouter(of.branches),
            tuple(self.segment(part, 0) for part in where.parts()),
            loses(of),
            branch,
        )

    def _steps(
        self, where: Located, first: int, filters: Sequence[Component[FilterOptions]]
    ) -> tuple[tuple[Filter, ...], FilterCounts]:
        """What drops events that a filter could not process is a step of its own."""
        notes: list[bool] = []
        for part in filters:
            notes += [part.options.notes_errors, *([False] if part.on_error == DROP else [])]
        inner = bool(where.name or first)
        key = f"{self._task}/{where.place}{first}" if inner else self._task
        reshaping = any(part.options.reshapes for part in filters)
        counts = FilterCounts(self._counts, key, notes, inner=inner, reshapes=reshaping)
        steps: list[Filter] = []
        for number, part in enumerate(filters, first):
            steps.append(marking(part))
            if part.on_error == DROP:
                counting = counts.failed(_place(where, number, part), on_error.failures)
                steps.append(on_error.DropFailures([counting]))
        return tuple(steps), counts


def _place(where: Located, number: int, part: Component[FilterOptions]) -> str:
    return f"{where.place}filters[{number}].{part.name}"


def filtered(root: Segment | LetterSegment) -> Filtered:
    """What became of the events of all segments since the last call."""
    found = [(one.branch, one.counts.take()) for one in root.walk()]
    dropped = [counts.dropped for _, counts in found]
    return Filtered(
        None if None in dropped else sum(filter(None, dropped)),
        sum(counts.errors for _, counts in found),
        {branch: counts.read for branch, counts in found if branch},
        {place: count for _, counts in found for place, count in counts.failed.items()},
    )
