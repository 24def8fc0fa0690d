"""The identity of an event: columns that filters never change, present if a sink or filter asks."""

from __future__ import annotations

import pyarrow as pa

JOURNAL, SEQ, SPLIT = "__journal", "__seq", "__split"
COLUMNS = (JOURNAL, SEQ, SPLIT)
"""The partition, the offset in it, and the number of the batch's split, from 0. The names are those
of journals, which were the first kind of partition."""


def with_identity(events: pa.Schema) -> pa.Schema:
    journal, seq = events.field("journal"), events.field("seq")
    return pa.schema(
        [
            *events,
            journal.with_name(JOURNAL),
            seq.with_name(SEQ),
            pa.field(SPLIT, pa.int32(), nullable=False),
        ]
    )


def identify(events: pa.RecordBatch, split: int) -> pa.RecordBatch:
    """Add the identity columns to ``events``, which have the columns ``journal`` and ``seq``."""
    number = pa.repeat(pa.scalar(split, pa.int32()), events.num_rows)
    columns = [*events.columns, events.column("journal"), events.column("seq"), number]
    return pa.RecordBatch.from_arrays(columns, schema=with_identity(events.schema))


def present(events: pa.Schema) -> tuple[str, ...]:
    return tuple(name for name in COLUMNS if name in events.names)


def without(events: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in events if field.name not in COLUMNS])


def strip(events: pa.RecordBatch) -> pa.RecordBatch:
    return events.drop_columns(list(present(events.schema)))


def name_of(events: pa.RecordBatch) -> str:
    if not present(events.schema):
        return "an event"
    return f"the event {events.column(JOURNAL)[0].as_py()}-{events.column(SEQ)[0].as_py()}"
