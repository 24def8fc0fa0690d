"""Why an event could not be parsed, noted in its attributes: ``attrs.parse_error``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PARSE_ERROR = "parse_error"


def note(attrs: pa.MapArray, reasons: pa.Array, key: str = PARSE_ERROR) -> pa.MapArray:
    """``attrs`` with the reason added where there is one; an earlier reason of a row is kept."""
    wanted = reasons.is_valid().to_numpy(False)
    if not wanted.any():
        return attrs
    offsets = attrs.offsets.to_numpy().astype(np.int64)
    taken = np.flatnonzero(pc.equal(attrs.keys, key).to_numpy(False))
    rows = np.searchsorted(offsets, taken, side="right") - 1
    wanted[rows[(rows >= 0) & (rows < len(wanted))]] = False
    noted = np.flatnonzero(wanted)
    first, last = offsets[0], offsets[-1]
    entries = np.arange(first, last)
    places = offsets[noted + 1] - first
    key_order = np.insert(entries, places, len(attrs.keys))
    item_order = np.insert(entries, places, len(attrs.items) + np.arange(len(noted)))
    keys = pa.concat_arrays([attrs.keys, pa.array([key])]).take(pa.array(key_order))
    items = pa.concat_arrays([attrs.items, reasons.take(pa.array(noted))])
    grown = np.concatenate([[0], np.cumsum(np.diff(offsets) + wanted)]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(grown), keys, items.take(pa.array(item_order)))
