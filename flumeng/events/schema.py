"""The columns of events, stored and as read: seq is a frame's first seq plus the row number."""

from __future__ import annotations

import pyarrow as pa

EVENT_SCHEMA = pa.schema(
    [
        pa.field("body", pa.binary()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        pa.field("host", pa.string()),
        pa.field("attrs", pa.map_(pa.string(), pa.string())),
    ]
)

READ_SCHEMA = pa.schema(
    [
        *EVENT_SCHEMA,
        pa.field("journal", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("replayed", pa.bool_()),
    ]
)
