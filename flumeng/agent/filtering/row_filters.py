"""Filters of a flow in Arrow alone, for events of other sites' readers.

The result of an event depends on nothing but the event and the text of the filters. So a range that
is cut in another way, or read again, gives the same events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.config import parse_flow
from flumeng.config.stages import FilterStage
from flumeng.connectors.sites.reader import SITES, passed_sites
from flumeng.events import identity
from flumeng.events.lazy_batch import Fused, LazyBatch
from flumeng.events.schema import READ_SCHEMA
from flumeng.filters.segments import Step
from flumeng.journal.serving import filtered_wire
from flumeng.platform.errors import UserError


class RowFilters:
    """The filters of the flow with this text, not those of its branches. Events that a filter
    refuses are dropped: the flow itself writes its dead letters. ``schema``: behind the filters."""

    def __init__(self, text: str) -> None:
        """Set up the filters. Raises UserError for one that Arrow cannot run alone."""
        given = identity.with_identity(READ_SCHEMA)
        batch = LazyBatch.of_splits(_refuse_spark, 1, _pass, given)
        for stage in parse_flow(text).stages:
            if isinstance(stage, FilterStage) and not stage.branch:
                batch = replace(batch, session=partial(_refuse_spark, stage.place))
                batch = Step.of(stage.part, stage.place).apply(batch)
        self._stages = Fused(batch.pending)
        self.schema = identity.without(batch.schema)
        self._fields = self.schema.append(batch.schema.field(identity.SEQ))
        _check(self.schema)

    def run(self, events: pa.RecordBatch) -> bytes:
        """Filter events in READ_SCHEMA; return them as in a chunk of ``filtered_wire``."""
        names, fields = self._fields.names, self._fields
        made = [
            pa.RecordBatch.from_arrays([part.column(name) for name in names], schema=fields)
            for part in self._stages(iter([identity.identify(events, 0)]))
        ]
        behind = pa.Table.from_batches(made, fields)
        seqs = behind.column(identity.SEQ)
        if "seq" in self.schema.names and not behind.column("seq").equals(seqs):
            raise UserError("the filters change the column seq: readers of other sites need it")
        own = [name for name in self.schema.names if name not in filtered_wire.OWN]
        sites = _passed(events, seqs)
        columns = [*map(behind.column, own), seqs, sites]
        names = [*own, filtered_wire.SEQ, filtered_wire.SITES]
        return filtered_wire.written(pa.table(columns, names))


@lru_cache(maxsize=64)
def of(text: str) -> RowFilters:
    return RowFilters(text)


def _check(schema: pa.Schema) -> None:
    if SITES in schema.names:
        raise UserError(f"the filters make a column {SITES}, which readers of other sites add")
    for name in filtered_wire.OWN:
        kind = READ_SCHEMA.field(name).type
        if name in schema.names and schema.field(name).type != kind:
            raise UserError(
                f"the filters make the column {name} a {schema.field(name).type}: readers of other "
                f"sites need it as {kind}"
            )


def _passed(events: pa.RecordBatch, seqs: pa.ChunkedArray) -> pa.Array:
    """Return the attribute ``sites`` of the events with these seqs, as it was received."""
    passed = passed_sites(events.column("attrs"))
    if passed is None:
        return pa.nulls(len(seqs), pa.string())
    return passed.take(pc.index_in(seqs, events.column("seq")))


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _refuse_spark(place: str = "") -> NoReturn:
    raise UserError(f"{place} needs Spark, but a gateway has Arrow alone")
