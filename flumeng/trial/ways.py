"""All ways of a flow's events: through its own filters into its sinks, and through its branches.

What is behind the filters of the flow, or of a branch, is computed once, and goes on into each of
its branches, as in a collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from flumeng.filters import on_error
from flumeng.filters.lazy_batch import LazyBatch, Session
from flumeng.filters.making import made
from flumeng.filters.parting import Parting
from flumeng.spec.branch import Located, Segment
from flumeng.spec.component import DEAD_LETTER
from flumeng.trial.chain import FilterChain


@dataclass(frozen=True)
class Found:
    """What comes out into the sinks of the flow, or of the branch of that name; or as dead letters
    of the filter at ``failed``."""

    branch: str
    batches: list[pa.RecordBatch]
    failed: str = ""


@dataclass(frozen=True)
class Way:
    """A flow, or a branch, whose ``name`` has those that it is in before it; or as much of it as
    lies behind a filter that makes dead letters. ``ends``: it has sinks of its own. ``failed``: it
    has the dead letters of the filter at that place."""

    name: str
    chain: FilterChain
    ends: bool
    parts: tuple[Way, ...] = ()
    failed: str = ""

    def run(self, batches: Sequence[pa.RecordBatch]) -> Iterator[Found]:
        """What comes out of ``batches``, which are one batch of the flow's, at each end."""
        behind = self.chain.run(batches)
        if self.ends:
            yield Found(self.name, behind, self.failed)
        for part in self.parts:
            yield from part.run(behind)

    @property
    def in_arrow(self) -> bool:
        """Whether no filter needs Spark."""
        return all(part.chain.in_arrow for part in self.walk())

    def walk(self) -> Iterator[Way]:
        """Itself, and all that it parts into."""
        yield self
        for part in self.parts:
            yield from part.walk()


def ways_of(flow: Segment, session: Session, schema: pa.Schema) -> Way:
    """For events of ``schema``. Raises UserError when filters do not fit them."""
    identified = any(
        made(part).identified for one in Located(flow).walk() for part in one.segment.filters
    )
    return _way(Located(flow), session, schema, identified=identified)


def entering(segment: Segment, number: int) -> Callable[[LazyBatch], LazyBatch]:
    """Takes the events of the segment's branch of that number."""
    return partial(_taken, Parting(segment.branches), number)


def _way(
    located: Located,
    session: Session,
    schema: pa.Schema,
    *,
    first: int = 0,
    identified: bool = False,
    enter: Callable[[LazyBatch], LazyBatch] | None = None,
) -> Way:
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
        rest = _way(located, session, chain.schema, first=behind, enter=on_error.processed)
        failed = Way(located.name, letters, ends=True, failed=place)
        return Way(located.name, chain, ends=False, parts=(failed, rest))
    parts = tuple(
        _way(part, session, chain.schema, enter=entering(segment, number))
        for number, part in enumerate(located.parts())
    )
    return Way(located.name, chain, bool(segment.sinks), parts)


def _taken(parting: Parting, number: int, batch: LazyBatch) -> LazyBatch:
    return parting.taken(parting.mark(batch), number)
