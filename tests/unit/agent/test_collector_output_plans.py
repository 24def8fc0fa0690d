"""A batch that goes several ways is read and filtered once, and each event goes where it should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.collector.batch import Filtered
from flumeng.agent.collector.output_plans import Plan
from flumeng.agent.collector.stages import FilterCounts, Outputs, Stages
from flumeng.config.branch import Branch
from flumeng.config.component import Component, FilterOptions, SinkOptions
from flumeng.config.stages import stages_of
from flumeng.connectors.api.sink import Row
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reports import Reports
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.marks import Marks
from flumeng.filters.segments import Segment, Step, segments_of

EVENTS = pa.schema([pa.field("n", pa.int64())])
ROWS = pa.schema([pa.field("n", pa.int64()), pa.field("sink", pa.int64())])
NOTHING: Any = None


@dataclass
class Read:
    """The first stage: ``numbers`` in batches of three; it counts its calls."""

    numbers: list[int | None]
    asked: int = 0

    def __call__(self, _splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.asked += 1
        for first in range(0, len(self.numbers), 3):
            yield batch(self.numbers[first : first + 3])


class Half:
    """A filter that drops odd numbers and nulls and halves the rest; it counts events."""

    tables = ()
    identified = False

    def __init__(self) -> None:
        self.events = 0

    def apply(self, batch: LazyBatch) -> LazyBatch:
        return batch.arrow(self, batch.schema)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            self.events += each.num_rows
            yield batch([n // 2 for n in each["n"].to_pylist() if n is not None and n % 2 == 0])


def batch(numbers: list[int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=EVENTS)


NOOP = Component("sink", "noop", SinkOptions())
HALF = Component("filter", "half", FilterOptions())


def tree(root: Branch, made: Reports | None = None) -> Stages:
    """A tree of filters that need no Spark."""
    segments = segments_of(stages_of(root), lambda _part, place: Step(Half(), place))
    return Stages(segments, made or Reports())


def halves(stages: Stages) -> list[Half]:
    return [step.filter for step in stages.steps if isinstance(step.filter, Half)]


@dataclass(frozen=True)
class Sink:
    number: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            assert each.schema == EVENTS, "no marks are left"
            numbers = pa.array([self.number] * len(each), pa.int64())
            yield pa.RecordBatch.from_arrays([each["n"], numbers], schema=ROWS)


def run(root: Stages, read: Read, made: Reports | None = None) -> dict[int, list[int | None]]:
    """The numbers that each sink received, by the sink's number. The reports are added to
    ``made``."""
    events = root.through(LazyBatch.of_splits(NOTHING, 1, read, EVENTS))
    fork = root.fork(
        events, Outputs(lambda events, number: events.arrow(Sink(number), ROWS), NOTHING)
    )
    (whole,) = Plan.of(((),), fork).runs
    stage = whole.batch.all_arrow
    assert stage is not None
    with reports.collecting() as of_run:
        found: list[Row] = [row for out in stage(iter([])) for row in out.to_pylist()]
    if made is not None:
        made.add(of_run)
    got: dict[int, list[int | None]] = {number: [] for number in whole.sinks}
    for number, rows in whole.rows(found):
        assert {row["sink"] for row in rows} <= {number}
        got[number] += [row["n"] for row in rows]
    return got


def model(root: Branch, numbers: list[int | None]) -> list[list[int | None]]:
    """The same in plain Python: the numbers for each sink of the tree, depth first."""
    for _ in root.filters:
        numbers = [n // 2 for n in numbers if n is not None and n % 2 == 0]
    found = [list(numbers) for _ in root.sinks]

    def takes(branch: Branch, n: int | None) -> bool:
        assert branch.when is not None
        return n is not None and n < int(branch.when.rpartition(" ")[2])

    for branch in root.branches:
        if branch.otherwise:
            others = [b for b in root.branches if b.when is not None]
            own = [n for n in numbers if not any(takes(other, n) for other in others)]
        elif branch.when is None:
            own = numbers
        else:
            own = [n for n in numbers if takes(branch, n)]
        found += model(branch, own)
    return found


def branches(depth: int) -> st.SearchStrategy[tuple[Branch, ...]]:
    def named(parts: list[tuple[Branch, int | None]], last: bool) -> tuple[Branch, ...]:
        conditional = any(limit is not None for _, limit in parts)
        every = all(limit is not None for _, limit in parts)
        found: list[Branch] = []
        for number, (part, limit) in enumerate(parts):
            otherwise = last and every and conditional and number == len(parts) - 1 > 0
            when = None if limit is None or otherwise else f"n < {limit}"
            found.append(replace(part, name=f"b{number}", when=when, otherwise=otherwise))
        return tuple(found)

    one = st.tuples(segments(depth), st.none() | st.integers(-2, 12))
    return st.builds(named, st.lists(one, min_size=1, max_size=3), st.booleans())


def segments(depth: int) -> st.SearchStrategy[Branch]:
    below = branches(depth - 1) if depth else st.just(())

    def made(filters: int, sinks: int, parts: tuple[Branch, ...]) -> Branch:
        sinks = sinks if parts else max(sinks, 1)
        return Branch(name="root", filters=(HALF,) * filters, sinks=(NOOP,) * sinks, branches=parts)

    return st.builds(made, st.integers(0, 1), st.integers(0, 2), st.just(()) | below)


@given(segments(2), st.lists(st.none() | st.integers(-3, 14), max_size=12))
def test_tree_of_branches_gives_the_events_of_its_model(
    root: Branch, numbers: list[int | None]
) -> None:
    read, segment = Read(numbers), tree(root)
    expected = dict(enumerate(model(root, numbers)))
    assert run(segment, read) == expected
    assert read.asked == 1
    assert all(half.events <= len(numbers) for half in halves(segment))


def test_ten_branches_cost_one_read_and_one_parse() -> None:
    ten = tuple(Branch(name=f"b{n}", when=f"n < {n}", sinks=(NOOP,)) for n in range(10))
    segment = tree(Branch(name="root", filters=(HALF,), branches=ten))
    read = Read(list(range(20)))
    found = run(segment, read)
    assert found == {n: list(range(n)) for n in range(10)}
    (half,) = halves(segment)
    assert (read.asked, half.events) == (1, 20)


def test_events_are_counted_by_branch_and_unmatched_ones_as_dropped() -> None:
    parts = (
        Branch(name="small", when="n < 2", filters=(HALF,), sinks=(NOOP,)),
        Branch(name="large", when="n < 4", sinks=(NOOP,)),
    )
    made = Reports()
    segment = tree(Branch(name="root", filters=(HALF,), branches=parts), made)
    run(segment, Read(list(range(20))), made)  # halves: 0 to 9; small 0 and 1, of which 0 goes on
    assert segment.filtered() == Filtered(10 + 1 + 6, 0, {"small": 2, "large": 4})
    assert segment.filtered() == Filtered(0, 0, {"small": 0, "large": 0})
    rest = Branch(name="rest", otherwise=True, sinks=(NOOP,))
    segment = tree(Branch(name="root", branches=(*parts, rest)), made)
    run(segment, Read(list(range(20))), made)
    assert segment.filtered() == Filtered(1, 0, {"small": 2, "large": 4, "rest": 16})


def test_dropped_events_are_unknown_where_filters_change_the_number_of_rows() -> None:
    events = LazyBatch.of_splits(NOTHING, 1, Half(), EVENTS)
    for reshapes, dropped in ((False, 0), (True, None)):
        step = Step(Half(), reshapes=reshapes)
        segment = Segment(None, "", (step,), Marks({}), (), ())
        counts = FilterCounts(Reports(), segment)
        counts.at_end(events)
        assert counts.take().dropped == dropped
