"""Entries of ``attrs``: of a whole column at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Mask
from flumeng.events.reasons import note


def value(attrs: pa.MapArray, key: str) -> pa.Array:
    """The entry of each row; null where there is none."""
    return pc.map_lookup(attrs, key, "first")


def put(attrs: pa.MapArray, key: str, values: pa.Array) -> pa.MapArray:
    """``attrs`` with ``values`` under ``key``; rows whose value is null stay as they are."""
    return note(without(attrs, [key], values.is_valid().to_numpy(False)), values, key)


def without(attrs: pa.MapArray, keys: Sequence[str], rows: Mask | None = None) -> pa.MapArray:
    """``attrs`` without the entries of ``keys``, in all rows or in some."""
    offsets = attrs.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    entries = attrs.keys.slice(first, last - first)
    taken = pc.is_in(entries, pa.array(keys, pa.string())).to_numpy(False)
    lengths = np.diff(offsets)
    if rows is not None:
        taken &= np.repeat(rows, lengths)
    if not taken.any():
        return attrs
    left = np.concatenate([[0], np.cumsum(~taken)])[offsets - first]
    kept = pa.array(first + np.flatnonzero(~taken))
    return pa.MapArray.from_arrays(
        pa.array(left.astype(np.int32)), attrs.keys.take(kept), attrs.items.take(kept)
    )
