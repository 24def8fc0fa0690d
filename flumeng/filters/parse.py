"""The filter ``parse``: adds columns from the body, in a format of ``flumeng.filters.formats``. A
malformed event is kept, with the reason in ``attrs.parse_error``; a value of another type is null,
with a reason too. Text that is not UTF-8 gets U+FFFD; the body never changes."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import note
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.filters import formats
from flumeng.filters.contract import EachBatch, Filter
from flumeng.filters.options.parse import Parse
from flumeng.filters.refused_times import Bounded
from flumeng.platform.errors import UserError

ROWS_AT_A_TIME = 4096
"""Rows that are parsed at once: small slices stay in the processor's cache."""


class ParseFilter(Filter):
    def __init__(self, options: Parse) -> None:
        self._options = options

    def apply(self, batch: LazyBatch) -> LazyBatch:
        _require_event(batch.schema)
        stage = ParseStage(formats.reader(self._options))
        columns = stage.reader.columns
        _require_new(batch.schema, columns.names)
        bounded = Bounded(stage, self._options.ts_within_seconds, ROWS_AT_A_TIME)
        return batch.arrow(bounded, pa.schema([*batch.schema, *columns]))


@dataclass(frozen=True)
class ParseStage(EachBatch):
    reader: formats.Reader

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        bodies = batch["body"]
        if bodies.null_count:
            bodies = pc.fill_null(bodies, b"")
        parsed = self.reader.read(bodies, batch["ts"])
        changed = {"attrs": note(batch["attrs"], parsed.reasons)}
        for name, own in (("ts", parsed.ts), ("host", parsed.host)):
            if own is not None:
                changed[name] = pc.coalesce(own, batch[name]) if own.null_count else own
        kept = [changed.get(name, batch[name]) for name in batch.schema.names]
        names = [*batch.schema.names, *self.reader.columns.names]
        return pa.RecordBatch.from_arrays([*kept, *parsed.columns], names)


def _require_event(schema: pa.Schema) -> None:
    for field in EVENT_SCHEMA:
        if field.name not in schema.names or schema.field(field.name).type != field.type:
            raise UserError(
                f"parse needs the column {field.name} as it was received: put parse before the "
                "filter that changes or drops it"
            )


def _require_new(schema: pa.Schema, names: list[str]) -> None:
    for name in names:
        if name in schema.names:
            raise UserError(f"parse: the column {name} exists already: rename the field")
