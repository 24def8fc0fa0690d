"""Events that an input has deleted before they were read, where a flow says to go on without them.

A gap is a range like any other: it is a batch of its own, which is acked when a record of it is
among the flow's dead letters. Nothing of it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flumeng.filters import identity
from flumeng.inputs import Range, Reach
from flumeng.sinks.dead_letters import Refuse

PLACE = "sources"
NO_COLUMNS = pa.schema([])


def gaps(planned: Mapping[str, int], reached: Mapping[str, Reach], most: int) -> tuple[Range, ...]:
    """What is gone of the partitions that are read on from ``planned``; at most ``most`` ranges."""
    found = (
        Range(name, start, reached[name].gone_below)
        for name, start in sorted(planned.items())
        if name in reached and start < reached[name].gone_below
    )
    return tuple(piece for piece, _ in zip(found, range(most), strict=False))


def are_gone(ranges: tuple[Range, ...], reached: Mapping[str, Reach]) -> bool:
    """Whether nothing of these ranges can be read any more."""
    return all(
        piece.partition in reached and piece.end <= reached[piece.partition].gone_below
        for piece in ranges
    )


@dataclass(frozen=True)
class RefuseGaps:
    """A stage that refuses an event for each of the ``ranges``, and yields none. The event has the
    columns that those of the flow have behind its filters, mostly null."""

    ranges: tuple[Range, ...]
    schema: pa.Schema

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            events = pa.RecordBatch.from_pylist([self._event(one) for one in self.ranges])
            refuse(self._fit(events), [reason(piece) for piece in self.ranges])
        yield from ()

    def _event(self, piece: Range) -> dict[str, Any]:
        what = {"partition": piece.partition, "start": piece.start, "end": piece.end}
        return {
            "body": json.dumps(what).encode(),
            "journal": piece.partition,
            "seq": piece.start,
            identity.JOURNAL: piece.partition,
            identity.SEQ: piece.start,
            identity.SPLIT: 0,
        }

    def _fit(self, events: pa.RecordBatch) -> pa.RecordBatch:
        known = set(events.schema.names)
        columns = [
            _as(events[field.name], field.type)
            if field.name in known
            else pa.nulls(events.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def reason(piece: Range) -> str:
    return (
        f"gap: the events of {piece.partition} from {piece.start} to {piece.end - 1} were deleted "
        "before they were read"
    )


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as the flow has it; null where its filters have made something else of it."""
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(column), kind)
