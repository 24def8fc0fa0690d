"""How many events go into a flow's filters, how many come out, and how many could not be parsed.

Executors count while events pass through Arrow stages that are there anyway; where there is none,
nobody counts: events would have to leave the JVM for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.ranged.accumulator import Accumulator, AccumulatorHandle
from flumeng.events.lazy_batch import LazyBatch, Stage
from flumeng.events.reasons import PARSE_ERROR
from flumeng.filters.contract import Filter

COUNTED = READ, PASSED, ERRORS, UNTAKEN = "read", "passed", "errors", "untaken"
FAILED = "failed at "
"""And by the place of a filter, how many events it dropped since it could not process them."""
ATTRS = "attrs"


@dataclass(frozen=True)
class Counted:
    """Of the events of a segment: how many came in, how many its filters dropped, None where nobody
    has counted, and how many they could not process. ``failed``: of the dropped ones, by place, how
    many a filter could not process."""

    read: int
    dropped: int | None
    errors: int
    failed: Mapping[str, int]


class FilterCounts:
    """Of one segment of a flow in a task. ``notes_errors``: of each of its steps, whether it says
    in the attributes of an event that it could not process it. An ``inner`` segment has what
    another one has left it. One that ``reshapes`` events leaves another number of rows than there
    are events, so that nobody can say how many were dropped."""

    def __init__(
        self,
        counts: Accumulator[int],
        key: str,
        notes_errors: Sequence[bool],
        *,
        inner: bool = False,
        reshapes: bool = False,
    ) -> None:
        self._counts = counts
        self._handle = AccumulatorHandle.of(counts)
        self._key = key
        self._notes = notes_errors
        self._inner = inner
        self._reshapes = reshapes
        self._counts_end = not notes_errors
        self._failed: list[str] = []
        self._before = self._values()

    def through(self, batch: LazyBatch, steps: Sequence[Filter]) -> LazyBatch:
        """``batch`` through the steps, counted where it goes in and around what notes errors."""
        if steps or (self._inner and batch.pending):
            batch = batch.arrow(self._count(READ), batch.schema)
        for step, notes in zip(steps, self._notes, strict=True):
            if notes and _has_attrs(batch):
                batch = batch.arrow(self._count(ERRORS, _errors_before), batch.schema)
                batch = step.apply(batch)
                batch = batch.arrow(self._count(ERRORS, _errors), batch.schema)
            else:
                batch = step.apply(batch)
        return batch

    def at_end(self, batch: LazyBatch) -> tuple[Stage, ...]:
        """What counts ``batch``, which is through the filters. Not for events that are in Spark SQL
        there, and stay there."""
        if not self._notes:
            return ()
        self._counts_end = not (batch.shuffled or self._reshapes)
        return (self._count(PASSED),)

    def untaken(self, of: Callable[[pa.RecordBatch], int]) -> Stage:
        """What counts events that no branch behind the segment takes."""
        return self._count(UNTAKEN, of)

    def failed(self, place: str, of: Callable[[pa.RecordBatch], int]) -> Stage:
        """What counts events that the filter at ``place`` drops since it could not process them."""
        self._failed.append(place)
        self._before = self._values()
        return self._count(FAILED + place, of)

    def take(self) -> Counted:
        """Of the events since the last call. Rows that were grouped are not dropped ones."""
        before, self._before = self._before, self._values()
        counts = {what: now - before[what] for what, now in self._before.items()}
        passed_by = max(0, counts[READ] - counts[PASSED]) if self._notes else 0
        return Counted(
            counts[READ],
            passed_by + counts[UNTAKEN] if self._counts_end else None,
            counts[ERRORS],
            {place: counts[FAILED + place] for place in self._failed},
        )

    def _count(self, what: str, of: Callable[[pa.RecordBatch], int] | None = None) -> Stage:
        return _Count(self._handle, (self._key, what), of or _rows)

    def _values(self) -> Mapping[str, int]:
        value = self._counts.value
        kinds = (*COUNTED, *(FAILED + place for place in self._failed))
        return {what: value.get((self._key, what), 0) for what in kinds}


@dataclass(frozen=True)
class _Count:
    """A stage that changes nothing; a split that fails is not counted."""

    counts: AccumulatorHandle[int]
    key: tuple[str, str]
    of: Callable[[pa.RecordBatch], int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in batches:
            count += self.of(batch)
            yield batch
        if count:
            self.counts.add({self.key: count})


def _rows(batch: pa.RecordBatch) -> int:
    return int(batch.num_rows)


def _errors(batch: pa.RecordBatch) -> int:
    if not batch.num_rows:
        return 0
    attrs = batch[ATTRS]
    first, last = attrs.offsets[0].as_py(), attrs.offsets[-1].as_py()
    found = pc.sum(pc.equal(attrs.keys.slice(first, last - first), PARSE_ERROR))
    return int(found.as_py() or 0)


def _errors_before(batch: pa.RecordBatch) -> int:
    """They are counted again behind the step."""
    return -_errors(batch)


def _has_attrs(batch: LazyBatch) -> bool:
    """Whether the events still have their attributes."""
    if ATTRS not in batch.schema.names:
        return False
    kind = batch.schema.field(ATTRS).type
    return bool(pa.types.is_map(kind) and pa.types.is_string(kind.key_type))
