"""Gaps: unreadable events in flows that may continue without them. A gap is a range in a batch
without events, acked together with a gap record among the flow's dead letters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from flumeng.connectors.api.dead_letters import Refuse
from flumeng.connectors.api.ranged import Range, Reach
from flumeng.control.zookeeper import Write
from flumeng.events import identity

PLACE = "sources"
NO_COLUMNS = pa.schema([])


@dataclass(frozen=True)
class Gap:
    """An unreadable range, and the writes that go with its ack. A ``cut`` (a truncation of the log)
    lies below the ack: then the range is empty, and only its leader's epoch is acked."""

    piece: Range
    why: str
    also: tuple[Write, ...] = ()
    cut: Range | None = None

    @property
    def reported(self) -> Range:
        return self.cut or self.piece

    @property
    def source(self) -> str:
        """The partition in the record's id; unique for a cut, whose offsets may have records."""
        name = self.piece.partition
        return name if self.cut is None else f"{name}.cut-{self.cut.end}"

    @property
    def reason(self) -> str:
        piece = self.reported
        where = f"{piece.partition} from {piece.start} to {piece.end - 1}"
        return f"gap: the events of {where}: {self.why}"


def gaps(planned: Mapping[str, int], reached: Mapping[str, Reach], most: int) -> tuple[Gap, ...]:
    """Find at most ``most`` gaps, in partitions whose reading continues at ``planned``."""
    candidates = (
        _gap(Range(name, start, max(start, reached[name].gone_below)), reached[name])
        for name, start in sorted(planned.items())
        if name in reached
        and (reached[name].cut or reached[name].gone_from <= start < reached[name].gone_below)
    )
    return tuple(gap for gap, _ in zip(candidates, range(most), strict=False))


def gone(ranges: tuple[Range, ...], reached: Mapping[str, Reach]) -> tuple[Gap, ...]:
    """Return all ranges as gaps when every one is entirely unreadable, else none."""
    there = all(
        piece.partition in reached and _is_gone(piece, reached[piece.partition]) for piece in ranges
    )
    return tuple(_gap(piece, reached[piece.partition]) for piece in ranges) if there else ()


def left_out(ranges: Iterable[Range], reached: Mapping[str, Reach]) -> tuple[Gap, ...]:
    """Find the unreadable parts of a batch, each in the range in which it starts, and cut there."""
    return tuple(
        Gap(replace(piece, start=part.start, end=min(part.end, piece.end)), part.why, part.also)
        for piece in ranges
        for part in reached[piece.partition].left_out
        if piece.start <= part.start < piece.end
    )


def _is_gone(piece: Range, reach: Reach) -> bool:
    if not piece.events:
        return reach.cut is not None
    return reach.gone_from <= piece.start and piece.end <= reach.gone_below


def _gap(piece: Range, reach: Reach) -> Gap:
    """Return ``piece`` as a gap; writes of parts that begin before it go with ``left_out``."""
    if reach.cut is not None and not piece.events:
        cut = replace(piece, start=reach.cut.start, end=reach.cut.end)
        return Gap(piece, reach.cut.why, cut=cut)
    records = (part.also for part in reach.left_out if piece.start <= part.start < piece.end)
    return Gap(piece, reach.gone_why, tuple(chain.from_iterable(records)))


@dataclass(frozen=True)
class RefuseGaps:
    """A stage that sends one event per gap, with its reason, to the dead letters."""

    refused: tuple[tuple[Range, str, str], ...]
    schema: pa.Schema

    @classmethod
    def of(cls, gaps: Iterable[Gap], schema: pa.Schema) -> RefuseGaps:
        return cls(tuple((gap.reported, gap.source, gap.reason) for gap in gaps), schema)

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            events = [self._event(piece, source) for piece, source, _ in self.refused]
            reasons = [reason for _, _, reason in self.refused]
            refuse(self._fit(pa.RecordBatch.from_pylist(events)), reasons)
        yield from ()

    def _event(self, piece: Range, source: str) -> dict[str, Any]:
        what = {"partition": piece.partition, "start": piece.start, "end": piece.end}
        return {
            "body": json.dumps(what).encode(),
            "journal": piece.partition,
            "seq": piece.start,
            identity.JOURNAL: source,
            identity.SEQ: piece.start,
            identity.SPLIT: 0,
        }

    def _fit(self, events: pa.RecordBatch) -> pa.RecordBatch:
        names = set(events.schema.names)
        columns = [
            _as(events[field.name], field.type)
            if field.name in names
            else pa.nulls(events.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to the flow's type; null where its filters have changed the type."""
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(column), kind)
