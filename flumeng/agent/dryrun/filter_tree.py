"""Runs a flow's filters over batches in this process; common parts of branches run once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from flumeng.config.stages import FlowStage
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch, Session
from flumeng.filters.segments import Segment, segments_of
from flumeng.platform.errors import FlumengError


@dataclass(frozen=True)
class Given:
    batches: tuple[pa.RecordBatch, ...]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deque(numbers, maxlen=0)  # else Spark's Python worker would not serve another task
        yield from self.batches


@dataclass(frozen=True)
class Output:
    """Filtered events for the sinks of a branch, or dead letters of the filter at ``failed``. The
    name of the branch includes its parents'; it is empty for the flow's own sinks."""

    branch: str
    batches: list[pa.RecordBatch]
    schema: pa.Schema
    failed: str = ""

    def combined(self) -> list[pa.RecordBatch]:
        """Return the events in as few batches as Arrow allows."""
        if len(self.batches) <= 1:
            return self.batches
        return list(pa.Table.from_batches(self.batches).combine_chunks().to_batches())


class FilterTree:
    """A flow's filters for events of one schema. ``ends``: all possible outputs, without events."""

    def __init__(self, stages: tuple[FlowStage, ...], session: Session, schema: pa.Schema) -> None:
        """Set up the filters. Raises UserError when they do not fit the events or each other."""
        self._root = segments_of(stages)
        self._steps = [step for segment in self._root.walk() for step in segment.steps]
        self._identified = any(step.identified for step in self._steps)
        self._session = session
        self._schema = identity.with_identity(schema) if self._identified else schema
        self.ends = list(self._outputs((), tries=True))

    def run(self, batches: Sequence[pa.RecordBatch]) -> Iterator[Output]:
        """Filter events as one batch. Raises UserError, UnavailableError and errors of filters."""
        for step in self._steps:
            for table in step.tables:
                table.refresh()
        given = [identity.identify(batch, 0) for batch in batches] if self._identified else batches
        yield from self._outputs(given, tries=False)

    def _outputs(self, batches: Sequence[pa.RecordBatch], *, tries: bool) -> Iterator[Output]:
        with errors_in_one_line():
            batch = batch_of(self._session, batches, self._schema)
            yield from self._follow(self._root, "", batch, tries=tries)

    def _follow(
        self, segment: Segment, branch: str, batch: LazyBatch, *, tries: bool
    ) -> Iterator[Output]:
        branch = segment.branch or branch
        marked = segment.marks.mark(segment.through(batch))
        if not tries:
            marked = batch_of(self._session, events_of(marked), marked.schema)
        for way in segment.ways:
            taken = segment.take(marked, way)
            if way.segment is not None:
                yield from self._follow(way.segment, branch, taken, tries=tries)
            else:
                batches = [] if tries else events_of(taken)
                yield Output(branch, batches, taken.schema, way.letters)


def batch_of(session: Session, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> LazyBatch:
    first = Given(tuple(batches))
    return replace(LazyBatch.of_splits(session, 1, first, schema), large_rows=True)


def events_of(batch: LazyBatch) -> list[pa.RecordBatch]:
    """Compute the events of a batch in this process, or with Spark where Arrow cannot."""
    stage = batch.all_arrow
    if stage is not None:
        return [part for part in stage(iter(())) if part.num_rows]
    table = batch.rows().toArrow().cast(batch.schema)
    return [part for part in table.to_batches() if part.num_rows]


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Convert exceptions of Spark to one-line errors, as a collector does."""
    try:
        yield
    except FlumengError:
        raise
    except Exception as error:
        from flumeng.agent.collector.outcome import one_line  # noqa: PLC0415  loads Spark

        raise one_line(error) from error
