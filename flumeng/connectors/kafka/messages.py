"""The Arrow schema of Kafka messages as events."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flumeng.events.schema import READ_SCHEMA

HEADERS = pa.map_(pa.string(), pa.binary())
MESSAGE_SCHEMA = pa.schema(
    [
        *READ_SCHEMA,
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)


def empty_maps(kind: pa.MapType, count: int) -> pa.MapArray:
    """Return ``count`` empty maps; ``pa.repeat`` would take half a microsecond for each."""
    offsets = pa.array(np.zeros(count + 1, np.int32))
    keys, items = pa.array([], kind.key_type), pa.array([], kind.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items)
