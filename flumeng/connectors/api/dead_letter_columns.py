"""The columns that a dead letter has in addition to those of its event."""

from __future__ import annotations

import pyarrow as pa

ADDED = pa.schema(
    [
        pa.field("dead_reason", pa.string()),
        pa.field("dead_place", pa.string()),
        pa.field("dead_revision", pa.int64()),
        pa.field("dead_time", pa.timestamp("us", "UTC")),
    ]
)
