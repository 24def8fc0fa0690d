"""The filters of a flow and of its branches: a tree of filter chains.

What is behind the filters of the flow, or of a branch, is computed once, and goes on into each of
its branches, as in a collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from flumeng.agent.dryrun.chain import FilterChain
from flumeng.config.branch import Located, Segment
from flumeng.config.component import DEAD_LETTER
from flumeng.events.lazy_batch import LazyBatch, Session
from flumeng.filters import on_error
from flumeng.filters.branch_router import BranchRouter
from flumeng.filters.making import made


@dataclass(frozen=True)
class Output:
    """What comes out of a tree into the sinks of the flow, or of the branch of that name; or as
    dead letters of the filter at ``failed``."""

    branch: str
    batches: list[pa.RecordBatch]
    failed: str = ""

    def combined(self) -> list[pa.RecordBatch]:
        """The same events in one batch, or in as few as Arrow can have them in; none without
        events."""
        if len(self.batches) <= 1:
            return self.batches
        return list(pa.Table.from_batches(self.batches).combine_chunks().to_batches())


@dataclass(frozen=True)
class FilterTree:
    """Of a flow, or of a branch, whose ``name`` has those that it is in before it; or of as much of
    it as lies behind a filter that makes dead letters. ``ends``: it has sinks of its own.
    ``failed``: it has the dead letters of the filter at that place."""

    name: str
    chain: FilterChain
    ends: bool
    children: tuple[FilterTree, ...] = ()
    failed: str = ""

    def run(self, batches: Sequence[pa.RecordBatch]) -> Iterator[Output]:
        """What comes out of ``batches``, which are one batch of the flow's, at each end."""
        behind = self.chain.run(batches)
        if self.ends:
            yield Output(self.name, behind, self.failed)
        for child in self.children:
            yield from child.run(behind)

    def walk(self) -> Iterator[FilterTree]:
        """Itself, and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def filter_tree(flow: Segment, session: Session, schema: pa.Schema) -> FilterTree:
    """For events of ``schema``. Raises UserError when filters do not fit them."""
    identified = any(
        made(part).identified for one in Located(flow).walk() for part in one.segment.filters
    )
    return _tree(Located(flow), session, schema, identified=identified)


def entering(segment: Segment, number: int) -> Callable[[LazyBatch], LazyBatch]:
    """Takes the events of the segment's branch of that number."""
    return partial(_taken, BranchRouter(segment.branches), number)


def _tree(
    located: Located,
    session: Session,
    schema: pa.Schema,
    *,
    first: int = 0,
    identified: bool = False,
    enter: Callable[[LazyBatch], LazyBatch] | None = None,
) -> FilterTree:
    """From the filter with the number ``first`` on."""
    segment = located.segment
    filters = segment.filters[first:]
    failing = next((n for n, part in enumerate(filters) if part.on_error == DEAD_LETTER), None)
    if failing is not None:
        filters = filters[: failing + 1]
    marks = failing is not None
    make = partial(FilterChain, identified=identified, enter=enter, marks=marks)
    chain = make(filters, session, schema)
    if failing is not None:
        place = f"{located.place}filters[{first + failing}].{filters[-1].name}"
        letters = FilterChain((), session, chain.schema, enter=on_error.failed)
        behind = first + failing + 1
        rest = _tree(located, session, chain.schema, first=behind, enter=on_error.processed)
        failed = FilterTree(located.name, letters, ends=True, failed=place)
        return FilterTree(located.name, chain, ends=False, children=(failed, rest))
    children = tuple(
        _tree(part, session, chain.schema, enter=entering(segment, number))
        for number, part in enumerate(located.parts())
    )
    return FilterTree(located.name, chain, bool(segment.sinks), children)


def _taken(router: BranchRouter, number: int, batch: LazyBatch) -> LazyBatch:
    return router.branch_of(router.mark(batch), number)
