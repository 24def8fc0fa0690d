"""Adds columns for what the body says, in one of the formats of ``flumeng.filters.formats``.

An event that does not parse is never dropped: it keeps body, ts and host, and
``attrs.parse_error`` says why. A value that is not of its type is null, and the other columns keep
theirs. The body itself is never changed; text taken from it has U+FFFD where it is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.reasons import note
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.filters import formats
from flumeng.filters.options.parse import Parse
from flumeng.filters.receipt_bound import Bounded
from flumeng.platform.errors import UserError

ROWS_AT_A_TIME = 4096
"""Small slices, since the work on one then stays in the processor's cache."""


class ParseFilter:
    tables = ()
    identified = False

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
class ParseStage:
    """A stage: events with the columns of ``reader``."""

    reader: formats.Reader

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._parse(batch)

    def _parse(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        bodies = batch["body"]
        if bodies.null_count:
            bodies = pc.fill_null(bodies, b"")
        found = self.reader.read(bodies, batch["ts"])
        changed = {"attrs": note(batch["attrs"], found.reasons)}
        for name, own in (("ts", found.ts), ("host", found.host)):
            if own is not None:
                changed[name] = pc.coalesce(own, batch[name])
        kept = [changed.get(name, batch[name]) for name in batch.schema.names]
        names = [*batch.schema.names, *self.reader.columns.names]
        return pa.RecordBatch.from_arrays([*kept, *found.columns], names)


def _require_event(schema: pa.Schema) -> None:
    for field in EVENT_SCHEMA:
        if field.name not in schema.names or schema.field(field.name).type != field.type:
            raise UserError(
                f"parse: needs the column {field.name} as it was received; put select behind parse"
            )


def _require_new(schema: pa.Schema, names: list[str]) -> None:
    for name in names:
        if name in schema.names:
            raise UserError(f"parse: there is a column {name} already")
